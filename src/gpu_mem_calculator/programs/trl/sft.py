"""SFTConfig as keys of a run file (trl 1.16.0 trainer/sft_trainer.py)."""

from __future__ import annotations

from ..program import Program, Setup, Translation
from .common import (
    LAYERS_KEPT,
    Values,
    completion_tokens,
    sequence_length,
    set_labels,
    set_length,
    trainer_keys,
)

FLASH = ("flash_attention_2", "flash_attention_3")
OWN_ROWS = ("bfd", "bfd_split", "bfd-requeue")  # packing_strategy: documents do not mix


def translate(program: Program, values: Values, setup: Setup) -> Translation:
    """The keys of SFTTrainer: its loss computes logits in tiles (compute_loss, fused_lm_head)."""
    result = trainer_keys(program, values, setup)
    training = result.training
    training["loss"] = "chunked"
    _selective(values, result)
    packing, skips = values["packing"], (values["dataset_kwargs"] or {}).get("skip_prepare_dataset")
    length = sequence_length(program, values, truncated=not skips)
    if packing:
        length = values["max_length"]
        if length is None:
            result.problems.append("program.args.packing=true needs max_length, which is None")
    set_length(result, length)
    whole = values["completion_only_loss"] is False and not values["assistant_only_loss"]
    if not packing and not whole:
        set_labels(result, completion_tokens(program, values, length))
    if values["padding_free"] or (packing and values["packing_strategy"] in OWN_ROWS):
        _padding_free(values, result)
    if values["assistant_only_loss"] and not program.data.get("prompt"):
        result.assumed.append("all tokens have labels, because program.data.prompt is not given")
    return result


def _selective(values: Values, result: Translation) -> None:
    """gradient_checkpointing_kwargs={"selective": true}: attention is not computed again."""
    if not (values["gradient_checkpointing_kwargs"] or {}).get("selective"):
        return
    training = result.training
    if training.pop("activation_checkpointing", None) is None:
        where = "program.args.gradient_checkpointing_kwargs: selective"
        result.problems.append(f"{where} needs gradient_checkpointing=true")
    elif training.pop("checkpoint_reentrant", False):
        where = "program.args.gradient_checkpointing_kwargs: selective"
        result.problems.append(f"{where} does not work with use_reentrant; leave one out")
    training["recompute"] = LAYERS_KEPT


def _padding_free(values: Values, result: Translation) -> None:
    """The batch becomes one sequence, without padding (DataCollatorForLanguageModeling)."""
    training = result.training
    if not values["packing"] and values["max_length"] is not None:
        why = "TRL refuses it without packing while max_length is set; set max_length to null"
        result.problems.append(f"program.args.padding_free=true: {why}")
    if training.get("attention") not in FLASH:
        rows = "rows without padding are modelled for FlashAttention only"
        fix = "set program.load.attn_implementation to 'flash_attention_2'"
        result.problems.append(f"program.args: {rows}; {fix}, or packing_strategy to 'wrapped'")
    count, length = training["batch_size"], training.get("seq_len")
    if length is not None:
        labelled = training.get("labelled_tokens", length - 1)
        training |= {"batch_size": 1, "seq_len": count * length}
        training["labelled_tokens"] = count * labelled
