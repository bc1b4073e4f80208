"""A run of `swift sft`, `pt` or `rlhf` as a `program` section, and what the program cannot say.

`swift rlhf`: which trainer of TRL each type is near, and where it differs.
"""

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
from .processes import SwiftProcesses, add_hardware
from .tuners import training_lora, tuner_sections

TABLES = tables(__file__)
PAIRS = {"dpo": "trl.DPOTrainer", "cpo": "trl.DPOTrainer", "orpo": "trl.DPOTrainer"}
PAIRS |= {"simpo": "trl.DPOTrainer", "kto": "trl.KTOTrainer", "rm": "trl.RewardTrainer"}
NO_REFERENCE = ("cpo", "orpo", "simpo")
GRPO = "trl.GRPOTrainer"
LOGITS = (
    "log-probabilities come from all logits of labelled tokens; "
    "the estimate is TRL's, which computes them in tiles"
)
VALUES = "the value head's trainer is ms-swift's own; the estimate is TRL's, with a score alone"
USUAL_PROMPT = 1024
USUAL_BETA = 0.04  # arguments/rlhf_args.py _init_grpo
# Arguments of GRPO, and TRL's names.
GRPO_ARGS: dict[str, str] = TABLES["grpo_args"]
VLLM_ARGS: dict[str, str] = TABLES["vllm_args"]


def preference_run(reading: Reading, program: Section, values: Mapping[str, Any]) -> Section:
    """Complete a program of rlhf; returns keys of `training` beside it."""
    if values["method"] != "rlhf":
        if "peft" in program:
            program["peft"]["task_type"] = "CAUSAL_LM"
        return {}
    kind = values["rlhf_type"]
    if kind == "grpo":
        return _grpo(reading, program, values)
    if kind not in PAIRS:
        reading.run["program"] = {"tool": f"swift.{kind}"}
        return {}
    program["tool"] = PAIRS[kind]
    if "data" in program:
        program["args"]["max_length"] = program["data"]["seq_len"]
    why = VALUES if kind == "rm" else LOGITS
    reading.limits.append(Limit(key=f"rlhf_type={kind}", why=why, could="more"))
    if kind == "rm" and values["use_liger_kernel"]:
        program["args"]["liger_kernel_config"] = {"fused_linear_cross_entropy": False}
    training = _adapters(program, values)
    if kind in NO_REFERENCE or values["reference_free"]:
        training["reference_model"] = False
    return training


def _grpo(reading: Reading, program: Section, values: Mapping[str, Any]) -> Section:
    """A policy that generates, by itself or by vLLM (arguments/rlhf_args.py)."""
    program["tool"], args = GRPO, program["args"]
    prompt = program.pop("data", {}).get("seq_len")
    if prompt is None:
        prompt = USUAL_PROMPT
        reading.assumed.append(f"prompts of {prompt} tokens, because --max_length is not given")
    program["data"] = {"prompt": prompt}
    beta = values["beta"]
    args["beta"] = USUAL_BETA if beta is None else beta
    for name, theirs in GRPO_ARGS.items():
        if values[name] is not None:
            args[theirs] = values[name]
    args["top_k"] = max(0, values["top_k"] or 0)
    if values["use_vllm"]:
        args |= {"use_vllm": True, "vllm_mode": values["vllm_mode"] or "colocate"}
        args |= {one: values[name] for name, one in VLLM_ARGS.items() if values[name] is not None}
        args["vllm_enable_sleep_mode"] = bool(values["sleep_level"])
    reading.limits.append(Limit(key="rlhf_type=grpo", why=LOGITS, could="more"))
    training = _adapters(program, values)
    if (
        args.get("vllm_enable_sleep_mode") and args["vllm_mode"] == "colocate"
    ):  # TRL's own level is 2
        training["generation"] = {"sleep_level": values["sleep_level"]}
    return training


def _adapters(program: Section, values: Mapping[str, Any]) -> Section:
    """TRL would cast adapters of a quantized base to bf16, which ms-swift does not."""
    return {"lora": training_lora(values)} if "quantization" in program else {}


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
