"""SFTConfig as keys of a run file (trl 1.16.0 trainer/sft_trainer.py)."""

from __future__ import annotations

from typing import Any

from ...run.limits import Limit
from ...runfile.program import Program, Setup, Translation
from ..translation.arguments import Values, filled
from ..translation.at_release import before
from .trainer import LAYERS_KEPT, sequence_length, set_labels, set_length, trainer_keys

METRICS = Limit(
    key="the trainer's metrics",
    why="TRL before 1.6 copies the logits for the accuracy of tokens and their entropy",
    could="more",
    adds="4*logits",
)
OWN_ROWS = ("bfd", "bfd_split", "bfd-requeue")  # packing_strategy: documents do not mix


def translate(program: Program, values: Values, setup: Setup) -> Translation:
    """The keys of SFTTrainer: its loss computes logits in tiles (compute_loss, fused_lm_head)."""
    result = trainer_keys(program, values, setup)
    training = result.training
    values = _of_release(values, setup, result)
    _selective(values, result)
    packing, skips = values["packing"], (values["dataset_kwargs"] or {}).get("skip_prepare_dataset")
    if program.data.get("lengths") is not None:
        _mixed_lengths(program, values, result, truncated=not skips)
        return result
    length = sequence_length(program, values, truncated=not skips)
    if packing:
        length = values["max_length"]
        if length is None:
            result.problems.append("program.args.packing=true needs max_length, which is None")
    set_length(result, length)
    whole = values["completion_only_loss"] is False and not values["assistant_only_loss"]
    document = program.data.get("seq_len")
    if not whole:
        each = min(document, length) if packing and document and length else length
        set_labels(program, values, each, result)
    if values["padding_free"] or (packing and values["packing_strategy"] in OWN_ROWS):
        _padding_free(program, values, result)
    elif packing and "labelled_tokens" in training:  # rows are cut from one long text
        training["labelled_tokens"] = training["labelled_tokens"] * length // document
    if training.get("loss") != "chunked":  # whole logits have those of other tokens, too
        training.pop("labelled_tokens", None)
    if values["assistant_only_loss"] and not program.data.get("prompt"):
        result.assumed.append("all tokens have labels, because program.data.prompt is not given")
    return result


def _mixed_lengths(
    program: Program, values: Values, result: Translation, *, truncated: bool
) -> None:
    """Examples that differ in length: at most max_length tokens are left of each, then a data set
    is packed, or batches are padded or joined (DataCollatorForLanguageModeling).
    """
    training, packing = result.training, values["packing"]
    set_length(result, values["max_length"] if truncated or packing else None)
    multiple = values["pad_to_multiple_of"]
    training |= filled(pad_to_multiple_of=multiple if isinstance(multiple, int) else None)
    if packing and values["max_length"] is None:
        result.problems.append("program.args.packing=true needs max_length, which is None")
    elif packing:
        strategy = values["packing_strategy"]
        training["packing"] = "bfd" if strategy == "bfd-requeue" else strategy
    elif values["padding_free"]:
        training["padding_free"] = True
        _padding_free_problem(values, result)
    if program.data.get("prompt"):
        result.assumed.append("all tokens have labels, because examples differ in length")


def _padding_free_problem(values: Values, result: Translation) -> None:
    if not values["packing"] and values["max_length"] is not None:
        why = "TRL refuses it without packing while max_length is set; set max_length to null"
        result.problems.append(f"program.args.padding_free=true: {why}")


def _of_release(values: Values, setup: Setup, result: Translation) -> Values:
    """Add the loss: in tiles unless loss_type=nll before 1.15, and before 1.6 never; older releases
    compute whole logits and, since 0.15, the accuracy and entropy of their tokens from a copy
    (compute_loss). Before 0.15 sequences are cut to 1,024 tokens where nothing is said.
    """
    whole = before(setup.releases, "trl", "1.6") or (
        before(setup.releases, "trl", "1.15") and values["loss_type"] == "nll"
    )
    if not whole:
        result.training["loss"] = "chunked"
    elif not before(setup.releases, "trl", "0.15") and not values["use_liger_kernel"]:
        result.limits.append(METRICS)
    older: dict[str, Any] = {}
    if before(setup.releases, "trl", "0.19"):  # rows are cut from one long text
        older["packing_strategy"] = "wrapped"
    if before(setup.releases, "trl", "0.15") and values["max_length"] is None:
        older["max_length"] = 1024
    return {**values, **older}


def _selective(values: Values, result: Translation) -> None:
    """gradient_checkpointing_kwargs={"selective": true}: attention is not computed again."""
    if not (values["gradient_checkpointing_kwargs"] or {}).get("selective"):
        return
    training, where = result.training, "program.args.gradient_checkpointing_kwargs: selective"
    if training.pop("activation_checkpointing", None) is None:
        result.problems.append(f"{where} needs gradient_checkpointing=true")
    elif training.pop("checkpoint_reentrant", False):
        result.problems.append(f"{where} does not work with use_reentrant; leave one out")
    training["recompute"] = LAYERS_KEPT


def _padding_free(program: Program, values: Values, result: Translation) -> None:
    """The batch becomes one sequence of whole documents (DataCollatorForLanguageModeling), between
    which transformers masks attention, unless a FlashAttention kernel does (masking_utils.py
    find_packed_sequence_indices). Packing fills a row with as many documents as it holds.
    """
    training, packing = result.training, values["packing"]
    _padding_free_problem(values, result)
    rows, length = training["batch_size"], training.get("seq_len")
    if length is None:
        return
    document = min(program.data.get("seq_len") or length, length)
    each = length // document if packing else 1
    documents, tokens = rows * each, rows * each * document
    if evaluation := training.get("evaluation"):
        size = min(evaluation["batch_size"], evaluation.get("rows", evaluation["batch_size"]))
        own = evaluation.get("seq_len", each * document)
        evaluation |= {"batch_size": 1, "seq_len": size * own}
        evaluation.pop("rows", None)
    labelled = documents * training.get("labelled_tokens", document - 1)
    training |= {"batch_size": 1, "seq_len": tokens, "labelled_tokens": labelled}
    if documents > 1:
        training["packed_documents"] = documents
