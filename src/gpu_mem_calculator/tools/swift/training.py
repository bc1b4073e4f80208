"""A run of `swift sft`, `pt` or `rlhf` as a `program` section, and what the program cannot say."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from pathlib import Path
from typing import Any

from ...runfile.text.errors import InputError, quoted
from ..reading.named_files import NamedFiles
from ..reading.reading import Limit, Reading, Section
from ..reading.trainer_arguments import deepspeed_data, frozen_tower, is_zero3, trainer_args
from ..translation.arguments import argument_data, tables
from .preference import preference_run
from .processes import SwiftProcesses, add_hardware
from .tuners import tuner_sections

BUNDLED = argument_data("configurations", Path(__file__).parent)
FLASH = ("flash_attn", "flash_attention_2")
ATTENTION = ("eager", "sdpa", "flash_attention_2", "flash_attention_3")
OWN = tuple(tables(__file__)["own"])
OWN_LOSSES = ("enable_dft_loss", "enable_channel_loss")  # in whose place Liger's is not used
GLOBAL_BATCH = 16  # trainers/arguments.py: accumulation up to it, where none is given
DTYPES = ("bfloat16", "float16", "float32")


def training_run(
    reading: Reading,
    kept: Mapping[str, Any],
    values: dict[str, Any],
    files: NamedFiles,
    processes: SwiftProcesses,
) -> None:
    """Add the sections of a training run."""
    add_hardware(reading, processes)
    deepspeed = deepspeed_data(reading, values["deepspeed"], files, BUNDLED)
    program: Section = {"tool": "transformers.Trainer", "args": trainer_args(kept, without=OWN)}
    program["load"] = _loading(reading, values)
    sharded = _launch(reading, program, values, processes, deepspeed)
    if not sharded:
        program["load"]["device_map"] = {"": 0}
    program["args"] |= _batches(values, processes) | _precision(values) | _evaluation(values)
    program["args"] |= _checkpoints(values, processes, plain=not deepspeed and not sharded)
    if values["use_liger_kernel"] and any(values[name] for name in OWN_LOSSES):
        program["args"]["liger_kernel_config"] = {"fused_linear_cross_entropy": False}
    _set_length(reading, program, values)
    reading.run["program"] = program
    training: Section = {"pytorch_alloc_conf": processes.allocator} if processes.allocator else {}
    training |= tuner_sections(reading, program, values)
    training |= _tower(reading, values, deepspeed)
    training |= preference_run(reading, program, values)
    _name_limits(reading, values)
    if training and set(reading.run["program"]) > {"tool"}:
        reading.run["training"] = training


def _loading(reading: Reading, values: dict[str, Any]) -> Section:
    """The dtype of the weights, and the attention; the dtype decides mixed precision, too
    (arguments/base_args/model_args.py _init_mixed_precision).
    """
    dtype = values["torch_dtype"]
    if dtype is None:
        dtype = "bfloat16"
        reading.assumed.append("torch_dtype=bfloat16, as most checkpoints have it")
    if dtype not in DTYPES:
        raise InputError(f"torch_dtype={quoted(dtype)} must be one of {', '.join(DTYPES)}")
    values["torch_dtype"] = dtype
    load: Section = {"dtype": dtype}
    kind = values["attn_impl"]
    kind = "flash_attention_2" if kind in FLASH else kind
    if kind in ATTENTION:
        load["attn_implementation"] = kind
    elif kind is not None:
        why = "this attention is not modelled; the estimate has sdpa"
        reading.limits.append(Limit(key=f"attn_impl={kind}", why=why, could="either"))
    return load


def _precision(values: Mapping[str, Any]) -> Section:
    half = values["torch_dtype"] != "bfloat16"
    bf16, fp16 = values["bf16"], values["fp16"]
    return {"bf16": (not half) if bf16 is None else bf16, "fp16": half if fp16 is None else fp16}


def _batches(values: Mapping[str, Any], processes: SwiftProcesses) -> Section:
    """One sequence by default, and as many micro-batches as make 16 on all GPUs."""
    batch = values["per_device_train_batch_size"]
    steps = values["gradient_accumulation_steps"]
    if steps is None:
        steps = max(1, ceil(GLOBAL_BATCH / batch / (processes.count or 1)))
    return {"per_device_train_batch_size": batch, "gradient_accumulation_steps": steps}


def _evaluation(values: Mapping[str, Any]) -> Section:
    """An evaluation where there is a validation set, as often as checkpoints are saved
    (arguments/sft_args.py _init_eval_strategy).
    """
    sets = ("val_dataset", "cached_val_dataset", "eval_dataset")
    if not values["split_dataset_ratio"] and not any(values[name] for name in sets):
        return {"eval_strategy": "no"}
    strategy = values["eval_strategy"] or values["save_strategy"]
    return {
        "eval_strategy": strategy,
        "per_device_eval_batch_size": values["per_device_eval_batch_size"],
    }


def _checkpoints(values: Mapping[str, Any], processes: SwiftProcesses, *, plain: bool) -> Section:
    """Recompute is on by default, and reentrant but under DDP (trainers/mixin.py
    _fix_gradient_checkpointing).
    """
    if not values["gradient_checkpointing"]:
        return {"gradient_checkpointing": False}
    given = values["gradient_checkpointing_kwargs"]
    asked = given.get("use_reentrant") if isinstance(given, Mapping) else None
    reentrant = not (processes.distributed and plain) if asked is None else bool(asked)
    kinds = {"use_reentrant": reentrant}
    return {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": kinds}


def _launch(
    reading: Reading,
    program: Section,
    values: dict[str, Any],
    processes: SwiftProcesses,
    deepspeed: Section | None,
) -> bool:
    """Add DeepSpeed's or FSDP's configuration; returns whether parameters are sharded."""
    if processes.accelerate:
        program["accelerate"] = dict(processes.accelerate)
    if deepspeed:
        program["deepspeed"] = deepspeed
        return is_zero3(deepspeed)
    if not values["fsdp"]:
        return bool(processes.accelerate)
    if values["fsdp"] != "fsdp2":
        why = "only the configuration of the name fsdp2 is read; the estimate has that"
        reading.limits.append(Limit(key=f"fsdp={values['fsdp']}", why=why, could="either"))
    config = dict(BUNDLED["fsdp2"]["fsdp_config"])
    values["gradient_checkpointing"] = False  # the configuration computes layers again itself
    program["fsdp_config"] = {"version": config.pop("fsdp_version"), **config}
    return True


def _set_length(reading: Reading, program: Section, values: Mapping[str, Any]) -> None:
    """Every row has the most tokens that are allowed; packing fills rows."""
    length = values["packing_length"] if values["packing"] else None
    length = length or values["max_length"]
    if isinstance(length, int) and length > 0:
        program["data"] = {"seq_len": length}
        reading.assumed.append(f"every sequence has {length} tokens, and a label for each")
    else:
        reading.assumed.append("every sequence is as long as the model allows: give --max_length")


def _tower(reading: Reading, values: Mapping[str, Any], deepspeed: Section | None) -> Section:
    """A vision tower is not trained unless asked for (arguments/tuner_args.py freeze_vit)."""
    if values["tuner_type"] != "full" or not values["freeze_vit"]:
        return {}
    return frozen_tower(reading, "freeze_vit", values["model"], deepspeed)


def _name_limits(reading: Reading, values: Mapping[str, Any]) -> None:
    kind = values["task_type"]
    if kind in (None, "causal_lm"):
        return
    could = "less" if kind == "seq_cls" else "either"
    why = "its head and its batches are not modelled; the estimate is of a language model"
    reading.limits.append(Limit(key=f"task_type={kind}", why=why, could=could))  # type: ignore[arg-type]
