"""TrainingArguments as keys of a run file (transformers 5.17.0 trainer.py)."""

from __future__ import annotations

from ...pytorch.modelling.huggingface.liger import KERNELS, LIGER
from ...runfile.program import Program, Section, Setup, Translation
from ..trainer.accelerate import mixed_precision
from ..trainer.evaluation import add_evaluation
from ..trainer.launch import add_launch
from ..trainer.loading import (
    PURE,
    add_adapters,
    add_attention,
    add_keys,
    load_dtype,
    precision_keys,
)
from ..trainer.optimizers import optimizer_keys
from ..translation.arguments import Values, filled

LENGTHS = frozenset(("lengths", "padding", "pad_to_multiple_of"))  # of program.data


def translate(program: Program, values: Values, setup: Setup) -> Translation:
    """The keys of a plain Trainer, with the model prepared as PEFT's guide says."""
    result = Translation()
    training_keys(program, values, setup, result, prepared=True)
    return result


def training_keys(
    program: Program, values: Values, setup: Setup, result: Translation, *, prepared: bool
) -> None:
    """Add the keys that every program on top of Trainer has in common.

    prepared: whether prepare_model_for_kbit_training is called for a quantized base
    """
    training = result.training
    training["batch_size"] = values["per_device_train_batch_size"]
    training["gradient_accumulation_steps"] = values["gradient_accumulation_steps"]
    training["gradient_clipping"] = values["max_grad_norm"] or 0
    add_keys(result, optimizer_keys(values["optim"], values))
    dtype, mixed = load_dtype(program.load, setup, result), mixed_precision(program, values)
    add_keys(result, precision_keys(dtype, mixed, adapters=program.peft is not None))
    add_attention(program.load, result)
    add_adapters(program, result, prepared=prepared)
    training |= recompute_keys(values) | loss_keys(values, setup)
    training |= filled(seq_len=program.data.get("seq_len"))
    if LENGTHS & program.data.keys():
        from ..trainer.lengths import add_lengths

        add_lengths(program, values, result)
    add_launch(program, values, setup, result)
    if result.engine.get("type") == "fsdp" and dtype in PURE:
        training["load_dtype"] = PURE[dtype].removesuffix("_pure")
    training |= filled(data_workers=values["dataloader_num_workers"])
    if values["resume_from_checkpoint"]:
        training["resuming"] = "as_tool"
    add_evaluation(program, values, setup, result)


def recompute_keys(values: Values) -> Section:
    """Gradient checkpointing; not reentrant unless asked for (modeling_utils.py)."""
    if not values["gradient_checkpointing"]:
        return {}
    given = values["gradient_checkpointing_kwargs"] or {}
    reentrant = {"checkpoint_reentrant": True} if given.get("use_reentrant") else {}
    return {"activation_checkpointing": "full", **reentrant}


def loss_keys(values: Values, setup: Setup) -> Section:
    """Label smoothing, Liger's kernels and torch.compile."""
    keys = filled(label_smoothing=values["label_smoothing_factor"])
    if values["use_liger_kernel"]:
        config = values["liger_kernel_config"]
        keys["liger"] = True if not config else liger_kernels(config, setup.model().family)
    if values["torch_compile"] or values["torch_compile_mode"] or values["torch_compile_backend"]:
        keys["compile"] = values["torch_compile_mode"] or True
    return keys


def liger_kernels(config: Values, family: str) -> bool | list[str]:
    """Liger's kernels: the family's defaults, changed by a configuration
    (integrations/liger.py apply_liger_kernel). Liger leaves out names that it does not have for
    the family (liger-kernel 0.8.5 transformers/monkey_patch.py _apply_liger_kernel_to_instance).
    """
    if family not in LIGER:
        return True
    usual, others = LIGER[family].default, set(KERNELS) - set(LIGER[family].kernels)
    kept = [name for name in usual if config.get(name, True)]
    added = (name for name, on in config.items() if on and name not in usual)
    return [*kept, *(name for name in added if name not in others)]
