"""What TRL's trainers have in common (trl 1.16.0 trainer/)."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from ...ledger.frameworks import TRL
from ...run.limits import Limit
from ...runfile.program import Program, Section, Setup, Translation
from ..transformers.translate import training_keys
from ..translation.arguments import Values, tables
from ..translation.at_release import before

LAYERS_KEPT = "attention_kept"  # models/selective_activation_checkpointing.py
LIGER_LOSS = "fused_linear_cross_entropy"
# Families whose configuration has output_router_logits (transformers 5.17.0).
ROUTED = tuple(tables(__file__)["routed"])
TEMPLATES = (".jinja", ".j2")
CAST_FROM = "0.26"  # before, PEFT prepares a quantized base
CAST_BACK = Limit(
    key="a quantized base",
    why="TRL before 0.26 casts the embedding and the head back to bf16",
    could="less",
    saves="0.5*weights",
)
# How weights are loaded where nothing says it: since 0.26 as stored, since 0.27 in float32
# (trainer/utils.py create_model_from_path); before as transformers does.
AS_STORED, IN_FLOAT32 = "0.26", "0.27"


def trainer_keys(program: Program, values: Values, setup: Setup) -> Translation:
    """The keys of Trainer as TRL's trainers start it.

    - bf16 is on unless fp16 is (base_config.py __post_init__)
    - a quantized base is not prepared by PEFT, and its adapters are cast to bf16 after they were
      made (sft_trainer.py: param.data.to(torch.bfloat16)); before 0.26 it was prepared, and the
      embedding and the head were cast back (0.25.1 models/utils.py prepare_peft_model)
    - Liger's loss is left out, because the trainer has its own
    """
    result = Translation()
    bf16 = values["bf16"]
    meant = {**values, "bf16": not values["fp16"] if bf16 is None else bf16}
    if "Reward" not in program.tool:
        meant["liger_kernel_config"] = {**(values["liger_kernel_config"] or {}), LIGER_LOSS: False}
    loaded = replace(program, load=_loading(program, values, setup, result))
    prepared = before(setup.releases, "trl", CAST_FROM)
    training_keys(loaded, meant, setup, result, prepared=prepared)
    lora, training = result.training.get("lora"), result.training
    if lora is not None and training.get("quantization"):
        if prepared:
            result.limits.append(CAST_BACK)
        else:
            lora |= {"adapter_dtype": "bf16", "initial_dtype": "fp32"}
    if values.get("disable_dropout"):
        training["disable_dropout"] = True
    training.pop("label_smoothing", None)
    result.problems += _template_problem(values)
    if "SFT" not in program.tool and _selective(values):
        why = "is SFTTrainer's own key, and torch refuses it here; leave it out"
        result.problems.append(f"program.args.gradient_checkpointing_kwargs: selective {why}")
    result.warnings += _router_warning(values, setup)
    if (values["liger_kernel_config"] or {}).get(LIGER_LOSS):
        why = "TRL refuses it, because its own loss replaces Liger's; leave it out"
        result.problems.append(f"program.args.liger_kernel_config: {LIGER_LOSS}: {why}")
    return result


def older_release(setup: Setup) -> Iterator[Limit]:
    """That an older release of a trainer whose loss was read at the newest alone may differ: its
    logits, two of their fp32 copies, and their gradients.
    """
    if before(setup.releases, "trl", TRL.version):
        why = f"how this release computes its loss was not read; it is taken as TRL {TRL.version}"
        key = f"TRL {setup.releases['trl']}"
        yield Limit(key=key, why=why, adds="16*logits", saves="activations")


def _loading(program: Program, values: Values, setup: Setup, result: Translation) -> Section:
    """from_pretrained's arguments: the user's own, or those of a model that the trainer loads
    (trainer/utils.py create_model_from_path): float32, and on one GPU with a device map.
    """
    given = values["model_init_kwargs"]
    if program.load:
        if given:
            why = "is ignored by the trainer where program.load has loaded the model"
            result.problems.append(f"program.args.model_init_kwargs {why}; leave one out")
        return program.load
    placed = {"device_map": "auto"} if setup.num_gpus == 1 else {}
    if before(setup.releases, "trl", AS_STORED):
        return {**(given or {})}
    if before(setup.releases, "trl", IN_FLOAT32):
        return {"dtype": "auto", **placed, **(given or {})}
    result.assumed.append("the trainer loads the model itself, in float32 unless given")
    return {"dtype": "float32", **placed, **(given or {})}


def _selective(values: Values) -> bool:
    return "selective" in (values["gradient_checkpointing_kwargs"] or {})


def _router_warning(values: Values, setup: Setup) -> list[str]:
    """A sentence where the trainer adds the load-balancing loss of experts to its own."""
    if values.get("router_aux_loss_coef", 0.0) == 0.0 or setup.model().family not in ROUTED:
        return []
    loss = "TRL adds the load-balancing loss of the experts, whose tensors are not counted"
    return [f"{loss}; program.args.router_aux_loss_coef=0.0 turns it off"]


def _template_problem(values: Values) -> list[str]:
    path = values.get("chat_template_path")
    if path is None or str(path).endswith(TEMPLATES):
        return []
    why = "a tokenizer's template may add tokens to the embedding; give a .jinja file"
    return [f"program.args.chat_template_path={path!r}: {why}"]


def sequence_length(program: Program, values: Values, *, truncated: bool = True) -> int | None:
    """Tokens of a sequence as the model gets it: at most max_length, then padded to a multiple."""
    most, length = values["max_length"], program.data.get("seq_len") or None
    if truncated and most is not None:
        length = most if length is None else min(length, most)
    multiple = values["pad_to_multiple_of"]
    if length is not None and isinstance(multiple, int):
        length = -(-length // multiple) * multiple
    return length


def set_labels(program: Program, values: Values, length: int | None, result: Translation) -> None:
    """Add the number of labelled tokens, those of a sequence's completion; without a prompt all
    but the first have a label. A problem where truncation leaves none.
    """
    prompt, whole = program.data.get("prompt") or 0, program.data.get("seq_len") or length
    if not prompt or length is None or whole is None:
        return
    kept = min(whole, length) - prompt
    if values.get("truncation_mode") == "keep_end":
        kept = min(whole - prompt, length - 1)
    elif kept <= 0:
        rule = f"leaves no token of a completion in the {length} of a sequence; set it lower"
        result.problems.append(f"program.data.prompt={prompt} {rule}")
        return
    result.training["labelled_tokens"] = kept


def set_length(result: Translation, length: int | None) -> None:
    """Add the length of a sequence, where it is known."""
    if length is not None:
        result.training["seq_len"] = length
