"""A run of `swift sft`, `pt` or `rlhf` as a `program` section, and what the program cannot say.

Each type of `swift rlhf` is near one trainer of TRL, and differs from it. Tuners and quantization
are those of arguments/tuner_args.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from pathlib import Path
from typing import Any

from ...runfile.text.errors import InputError
from ..reading.named_files import NamedFiles
from ..reading.option_values import DTYPES, translated
from ..reading.reading import Could, Reading, Section
from ..reading.trainer_arguments import (
    deepspeed_data,
    frozen_tower,
    is_zero3,
    lora_keys,
    sampling_data,
    trainer_args,
)
from ..releases.tool_at import ToolAt
from ..trainer.loading import ATTENTION
from ..translation.arguments import Values, argument_data, filled, tables
from ..translation.tools import TRAINER
from .processes import SwiftProcesses, add_hardware

TABLES = tables(__file__)
PAIRS: Mapping[str, str] = TABLES["pairs"]  # the trainer that each type of rlhf is near
# What is estimated as something else: why, and how the run could differ.
LIMITS: Mapping[str, tuple[str, Could]] = TABLES["limits"]
NO_REFERENCE = ("cpo", "orpo", "simpo")
GRPO = "trl.GRPOTrainer"
USUAL_PROMPT = 1024
USUAL_BETA = 0.04  # arguments/rlhf_args.py _init_grpo
# Arguments of GRPO, and TRL's names.
GRPO_ARGS: dict[str, str] = TABLES["grpo_args"]
VLLM_ARGS: dict[str, str] = TABLES["vllm_args"]
FILES = argument_data("configurations", Path(__file__).parent)
# Before 3.0 (v2.6.1 swift/llm/utils/argument.py lora_dtype).
OLDER_DTYPES = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}
# Until 2.6.1 (swift/llm/utils/argument.py handle_deepspeed, prepare_deepspeed).
OLDER_FILES = {"default-zero2": "zero2", "default-zero3": "zero3"}
OLDER_FILES |= {"zero2-offload": "zero2_offload", "zero3-offload": "zero3_offload"}
BUNDLED = {**FILES, **{old: FILES[new] for old, new in OLDER_FILES.items()}}
FLASH = ("flash_attn", "flash_attention_2")
OWN = tuple(TABLES["own"])
OWN_LOSSES = ("enable_dft_loss", "enable_channel_loss")  # in whose place Liger's is not used
OLD_DEFAULT = "DEFAULT"  # of target_modules in 2.x
AS_LOADED = (None, "", "AUTO")  # values of lora_dtype; the last is the default of 2.x
GLOBAL_BATCH = 16  # trainers/arguments.py: accumulation up to it, where none is given
BITS = (4, 8)


def training_run(
    reading: Reading,
    kept: Values,
    values: dict[str, Any],
    files: NamedFiles,
    processes: SwiftProcesses,
    at: ToolAt,
) -> None:
    """Add the sections of a training run."""
    add_hardware(reading, processes)
    deepspeed = deepspeed_data(reading, values["deepspeed"], files, BUNDLED)
    program: Section = {"tool": TRAINER, "args": trainer_args(kept, without=OWN)}
    program["load"] = _loading(reading, values)
    sharded = _launch(reading, program, values, processes, deepspeed)
    if not sharded:
        program["load"]["device_map"] = {"": 0}
    program["args"] |= _batches(values, processes) | _precision(values) | _evaluation(values)
    plain = not deepspeed and not sharded and not at.before("3.6.0")
    program["args"] |= _checkpoints(values, processes, plain=plain)
    if values["use_liger_kernel"] and any(values[name] for name in OWN_LOSSES):
        program["args"]["liger_kernel_config"] = {"fused_linear_cross_entropy": False}
    _set_length(reading, program, values)
    reading.run["program"] = program
    training = filled(pytorch_alloc_conf=processes.allocator)
    training |= _tuner(reading, program, values)
    training |= _tower(reading, values, deepspeed)
    training |= _preference(reading, program, values)
    task = values["task_type"]
    if task not in (None, "causal_lm"):
        reading.limit(f"task_type={task}", *LIMITS["seq_cls" if task == "seq_cls" else "task_type"])
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
    translated("torch_dtype", dtype, DTYPES)  # it is one of them
    values["torch_dtype"] = dtype
    load: Section = {"dtype": dtype}
    kind = values["attn_impl"]
    kind = "flash_attention_2" if kind in FLASH else kind
    if kind in ATTENTION:
        load["attn_implementation"] = kind
    elif kind is not None:
        reading.limit(f"attn_impl={kind}", *LIMITS["attn_impl"])
    return load


def _precision(values: Values) -> Section:
    half = values["torch_dtype"] != "bfloat16"
    bf16, fp16 = values["bf16"], values["fp16"]
    return {"bf16": (not half) if bf16 is None else bf16, "fp16": half if fp16 is None else fp16}


def _batches(values: Values, processes: SwiftProcesses) -> Section:
    """One sequence by default, and as many micro-batches as make 16 on all GPUs."""
    batch = values["per_device_train_batch_size"] or 1  # 2.x leaves it to the kind of training
    steps = values["gradient_accumulation_steps"]
    if steps is None:
        steps = max(1, ceil(GLOBAL_BATCH / batch / (processes.count or 1)))
    return {"per_device_train_batch_size": batch, "gradient_accumulation_steps": steps}


def _evaluation(values: Values) -> Section:
    """An evaluation where there is a validation set, as often as checkpoints are saved
    (arguments/sft_args.py _init_eval_strategy).
    """
    sets = ("val_dataset", "cached_val_dataset", "eval_dataset")
    if not values["split_dataset_ratio"] and not any(values[name] for name in sets):
        return {"eval_strategy": "no"}
    strategy, size = (
        values["eval_strategy"] or values["save_strategy"],
        "per_device_eval_batch_size",
    )
    return {"eval_strategy": strategy, size: values[size]}


def _checkpoints(values: Values, processes: SwiftProcesses, *, plain: bool) -> Section:
    """Recompute is on by default, and reentrant but under DDP since 3.6.0 (trainers/mixin.py
    _fix_gradient_checkpointing; 3.5.3 trainers/arguments.py:73).
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
        reading.limit(f"fsdp={values['fsdp']}", *LIMITS["fsdp"])
    config = dict(BUNDLED["fsdp2"]["fsdp_config"])
    values["gradient_checkpointing"] = False  # the configuration computes layers again itself
    program["fsdp_config"] = {"version": config.pop("fsdp_version"), **config}
    return True


def _set_length(reading: Reading, program: Section, values: Values) -> None:
    """Every row has the most tokens that are allowed; packing fills rows."""
    length = values["packing_length"] if values["packing"] else None
    length = length or values["max_length"]
    if isinstance(length, int) and length > 0:
        program["data"] = {"seq_len": length, **sampling_data(values)}
        reading.assumed.append(f"every sequence has {length} tokens, and a label for each")
    else:
        reading.assumed.append("every sequence is as long as the model allows: give --max_length")


def _tower(reading: Reading, values: Values, deepspeed: Section | None) -> Section:
    """A vision tower is not trained unless asked for (arguments/tuner_args.py freeze_vit)."""
    if values["tuner_type"] != "full" or not values["freeze_vit"]:
        return {}
    return frozen_tower(reading, "freeze_vit", values["model"], deepspeed)


def _preference(reading: Reading, program: Section, values: Values) -> Section:
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
    reading.limit(f"rlhf_type={kind}", *LIMITS["a score" if kind == "rm" else "all logits"])
    if kind == "rm" and values["use_liger_kernel"]:
        program["args"]["liger_kernel_config"] = {"fused_linear_cross_entropy": False}
    training = _adapters(program, values)
    if kind in NO_REFERENCE or values["reference_free"]:
        training["reference_model"] = False
    return training


def _grpo(reading: Reading, program: Section, values: Values) -> Section:
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
    reading.limit("rlhf_type=grpo", *LIMITS["all logits"])
    training = _adapters(program, values)
    sleeps = args.get("vllm_enable_sleep_mode") and args["vllm_mode"] == "colocate"
    if sleeps:  # TRL's own level is 2
        training["generation"] = {"sleep_level": values["sleep_level"]}
    return training


def _adapters(program: Section, values: Values) -> Section:
    """TRL would cast adapters of a quantized base to bf16, which ms-swift does not."""
    return {"lora": training_lora(values)} if "quantization" in program else {}


def _tuner(reading: Reading, program: Section, values: Values) -> Section:
    """Add `peft` and `quantization` to a program; returns keys of `training` beside it."""
    kind: str = values["tuner_type"]
    training: Section = {}
    if kind != "full":
        if kind != "lora":
            reading.limit(f"tuner_type={kind}", *LIMITS["tuner_type"])
        program["peft"] = _lora(values)
        if OLD_DEFAULT in (values["target_modules"] or ()):
            why = "ms-swift 2.x chooses by the model; all linear modules are taken"
            reading.limit(f"target_modules={OLD_DEFAULT}", why, "less")
        if values["lora_dtype"] not in AS_LOADED:
            training["lora"] = training_lora(values)
    if values["quant_method"] or values["quant_bits"]:
        quantization = _bitsandbytes(reading, values)
        if quantization:
            program["quantization"] = quantization
            training["upcast_unquantized"] = False
    return training


def training_lora(values: Values) -> Section:
    """Adapters as `training.lora` has them; fp32 unless lora_dtype says otherwise."""
    own = values["lora_dtype"]
    dtype = "float32" if own in AS_LOADED else OLDER_DTYPES.get(own, own)
    return lora_keys(_lora(values), translated("lora_dtype", dtype, DTYPES))


def _lora(values: Values) -> Section:
    """LoraConfig (pipelines/train/tuner.py prepare_adapter)."""
    names = values["target_modules"]
    names = [names] if isinstance(names, str) else list(names or ["all-linear"])
    plain = [name for name in names if not name.startswith("all-") and name != OLD_DEFAULT]
    peft: Section = {
        "r": values["lora_rank"],
        "target_modules": "all-linear" if "all-linear" in names or not plain else plain,
    }
    return peft | filled(lora_dropout=values["lora_dropout"], use_dora=values.get("use_dora"))


def _bitsandbytes(reading: Reading, values: Values) -> Section | None:
    """BitsAndBytesConfig (arguments/base_args/quant_args.py)."""
    method, bits = values["quant_method"], values["quant_bits"]
    if method not in (None, "bnb"):
        reading.limit(f"quant_method={method}", *LIMITS["quant_method"])
    elif bits not in BITS:
        raise InputError(f"quant_bits={bits}: bitsandbytes has 4 and 8 bits; use one of them")
    if not isinstance(bits, int) or bits > 4:
        return {"load_in_8bit": True} if bits == 8 else None
    return {
        "load_in_4bit": True,
        "bnb_4bit_quant_type": values["bnb_4bit_quant_type"],
        "bnb_4bit_use_double_quant": values["bnb_4bit_use_double_quant"],
        "bnb_4bit_compute_dtype": values["bnb_4bit_compute_dtype"] or values["torch_dtype"],
    }
