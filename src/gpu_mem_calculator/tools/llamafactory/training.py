"""A training run of LLaMA-Factory as a `program` section, and what the program cannot say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...runfile.text.errors import InputError
from ..reading.named_files import NamedFiles
from ..reading.reading import Could, Limit, Reading, Section
from ..reading.trainer_arguments import deepspeed_data, frozen_tower, is_zero3, trainer_args
from .adapters import adapter_sections
from .arguments import BUNDLED
from .launch import FactoryProcesses, fsdp_version, hardware
from .stages import STAGES, stage_run

ATTENTION = {"disabled": "eager", "sdpa": "sdpa", "fa2": "flash_attention_2"}
ATTENTION["fa3"] = "flash_attention_3"
OWN_CHECKPOINTS = ("gradient_checkpointing", "gradient_checkpointing_kwargs", "deepspeed")
OWN_LOSSES = ("use_dft_loss", "use_asft_loss", "use_eaft_loss")
MULTIPLE = 8  # the collators pad to it (train/*/workflow.py); that of stage pt does not


def training_run(
    reading: Reading,
    kept: Mapping[str, Any],
    values: Mapping[str, Any],
    files: NamedFiles,
    launch: FactoryProcesses,
) -> None:
    """Add the sections of a training run."""
    run = reading.run
    if hardware(launch, values):
        run["hardware"] = hardware(launch, values)
    refused = _refused_program(values)
    if refused:
        run["program"] = {"tool": refused}
        return
    _name_limits(reading, values)
    deepspeed = deepspeed_data(reading, values["deepspeed"], files, BUNDLED)
    program: Section = {"tool": STAGES[values["stage"]]}
    program["args"] = trainer_args(kept, without=OWN_CHECKPOINTS) | _checkpoints(values, launch)
    if values["enable_liger_kernel"]:
        program["args"] |= _liger(values)
    program["load"] = _loading(values, launch, deepspeed)
    program["data"] = {"seq_len": sequence_length(values)}
    if launch.accelerate:
        program["accelerate"] = dict(launch.accelerate)
    if deepspeed:
        program["deepspeed"] = deepspeed
    run["program"] = program
    training: Section = {}
    if launch.allocator:
        training["pytorch_alloc_conf"] = launch.allocator
    training |= adapter_sections(reading, program, values)
    training |= stage_run(reading, program, values)
    training |= _packing(reading, values)
    training |= _tower(reading, values, deepspeed)
    if training:
        run["training"] = training
    length = program["data"]["seq_len"]
    reading.assumed.append(f"every sequence has {length} tokens, the most that cutoff_len allows")


def sequence_length(values: Mapping[str, Any]) -> int:
    """Tokens of a row: cutoff_len, padded to a multiple of 8.

    hparams/data_args.py takes one off where packing is given, and data/processor/supervised.py
    adds it again; stage pt packs by default, without either.
    """
    length = int(values["cutoff_len"])
    if values["stage"] == "pt":
        return length - 1 if values["packing"] else length
    return -(-length // MULTIPLE) * MULTIPLE


def _liger(values: Mapping[str, Any]) -> Section:
    """Liger's kernels; a loss of LLaMA-Factory's own gets logits, so Liger's is not used
    (train/sft/trainer.py compute_loss_func).
    """
    own = any(values[name] for name in OWN_LOSSES)
    config = {"liger_kernel_config": {"fused_linear_cross_entropy": False}} if own else {}
    return {"use_liger_kernel": True, **config}


def _refused_program(values: Mapping[str, Any]) -> str:
    """The name of a program that cannot be answered; empty where it can."""
    if values["use_kt"]:
        return "ktransformers"
    if values["stage"] == "ppo":
        return "llamafactory.ppo"
    return "" if values["do_train"] else "llamafactory.predict"


def _checkpoints(values: Mapping[str, Any], launch: FactoryProcesses) -> Section:
    """Recompute is on unless it is switched off, and reentrant unless FSDP is version 2
    (model_utils/checkpointing.py prepare_model_for_training). Trainer's own switch calls the same
    function once more.
    """
    if values["gradient_checkpointing"]:
        given = values["gradient_checkpointing_kwargs"] or {"use_reentrant": True}
        return {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": dict(given)}
    if values["disable_gradient_checkpointing"]:
        return {"gradient_checkpointing": False}
    reentrant = bool(values["use_reentrant_gc"]) and fsdp_version(launch, values) != 2
    kinds = {"use_reentrant": reentrant}
    return {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": kinds}


def _loading(
    values: Mapping[str, Any], launch: FactoryProcesses, deepspeed: Section | None
) -> Section:
    """from_pretrained takes the checkpoint's dtype, and puts the weights on the GPU unless they are
    sharded (model/patcher.py patch_config). Weights that are trained are then cast to fp32, but
    not under pure_bf16, BAdam and ZeRO-3 (model/adapter.py init_adapter).
    """
    zero3 = is_zero3(deepspeed)
    trained = values["finetuning_type"] in ("full", "freeze")
    kept = values["pure_bf16"] or values["use_badam"] or zero3
    load: Section = {"dtype": "float32" if trained and not kept else "auto"}
    if values["flash_attn"] in ATTENTION:
        load["attn_implementation"] = ATTENTION[values["flash_attn"]]
    elif values["flash_attn"] != "auto":
        choice = ", ".join(("auto", *ATTENTION))
        raise InputError(f"flash_attn={values['flash_attn']!r} must be one of {choice}")
    sharded = zero3 or fsdp_version(launch, values)
    if values["low_cpu_mem_usage"] and not sharded:
        load["device_map"] = {"": 0}
    return load


def _name_limits(reading: Reading, values: Mapping[str, Any]) -> None:
    """Add a limit for each method that is estimated as another one."""
    kind, layers = values["finetuning_type"], values["freeze_trainable_layers"]
    if kind == "freeze":
        why = "some layers are trained; the estimate trains all of them"
        could: Could = "less" if layers > 0 else "either"
        reading.limits.append(Limit(key="finetuning_type=freeze", why=why, could=could))
    if kind == "oft":
        why = "orthogonal adapters are estimated as LoRA of the same targets, with rank 8"
        reading.limits.append(Limit(key="finetuning_type=oft", why=why, could="more"))
    if values["adapter_name_or_path"] and not values["create_new_adapter"]:
        why = "the adapter's own file has its rank and targets; the estimate has those given here"
        key = f"adapter_name_or_path={values['adapter_name_or_path']}"
        reading.limits.append(Limit(key=key, why=why, could="either"))


def _packing(reading: Reading, values: Mapping[str, Any]) -> Section:
    """neat_packing: documents of a row do not see each other. Without FlashAttention the collator
    makes a mask of the compute dtype (data/collator.py prepare_4d_attention_mask).
    """
    if not values["neat_packing"] or values["flash_attn"] == "fa2":
        return {}
    why = "the mask of seq² has the compute dtype; the estimate has one of a byte for each pair"
    reading.limits.append(Limit(key="neat_packing=true", why=why, could="more"))
    return {"packed_documents": 2}


def _tower(reading: Reading, values: Mapping[str, Any], deepspeed: Section | None) -> Section:
    """A vision tower is not trained unless asked for (model_utils/visual.py)."""
    if not values["freeze_vision_tower"] or values["finetuning_type"] not in ("full", "freeze"):
        return {}
    return frozen_tower(reading, "freeze_vision_tower", values["model_name_or_path"], deepspeed)
