"""Writes a run as Axolotl's YAML (Axolotl 067b021): the inverse of read.py.

The run is first a program of transformers.Trainer, whose arguments Axolotl has under other names.
What Axolotl cannot say is found by reading the file back, with the GPUs of the command.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...run.recompute import ATTENTION
from ...run.run import Run
from ...runfile.config import RunFile
from ...runfile.resolve.resolved_run import ResolvedRun
from ...runfile.text.errors import InputError
from ..reading.command import Command
from ..reading.named_files import NamedFiles
from ..transformers.launch import state_dict_type
from ..transformers.program import beyond_sft, program_sections
from ..translation.arguments import Values, filled, tables
from ..translation.tools import TRAINER
from ..writing.texts import json_text, yaml_text
from ..writing.unsaid import unsaid_sentences
from ..writing.written import Written
from .adapters import FUSED
from .batches import MULTIPLE
from .losses import CUT, LIGER, LIGER_KEYS
from .read import read_settings

TITLE = "Axolotl"
DATASET = "mhenrichsen/alpaca_2k_test"  # the dataset of Axolotl's own examples
CUT_PLUGIN = f"axolotl.integrations.cut_cross_entropy.{CUT}"
LIGER_PLUGIN = f"axolotl.integrations.liger.{LIGER}"
LEARNING_RATE = 0.0002  # Axolotl has no default
# Arguments of Trainer without effect on memory, and Axolotl's names.
FREE: dict[str, str] = tables(__file__)["free"]


def write(file: RunFile, resolved: ResolvedRun) -> Written:
    """The text of the YAML for `axolotl train`."""
    return _written(file, resolved, yaml_text)


def write_json(file: RunFile, resolved: ResolvedRun) -> Written:
    """The same as JSON, which is YAML, too."""
    return _written(file, resolved, json_text)


def _written(file: RunFile, resolved: ResolvedRun, text: Callable[[Any], str]) -> Written:
    beyond = beyond_sft(resolved.run)
    if beyond:
        raise InputError(f"the run has {beyond}; only SFT is written for Axolotl")
    program = program_sections(TITLE, TRAINER, file, resolved)
    run, args = resolved.run, program["args"]
    data = {
        "base_model": resolved.model.address,
        "datasets": [{"path": DATASET, "type": "alpaca"}],
        "output_dir": "output",
        **_batch(run, args),
        **_precision(run, program),
        **_recompute(run, args),
        **_adapter(run, program),
        **_losses(run, program),
        **_launch(resolved, program),
        **_evaluation(run),
        **{name: args[key] for key, name in FREE.items() if key in args},
    }
    gpus = resolved.hardware.num_gpus
    count = f" -- --num_processes {gpus}" if gpus > 1 else ""
    note = f"{DATASET} is the dataset of Axolotl's own examples; set yours"
    back = read_settings(data, Command(words=(), files=NamedFiles(None), num_gpus=gpus))
    return Written(
        text=text(data),
        notes=(note, *map(str, back.limits)),
        unsaid=unsaid_sentences(TITLE, file, resolved, back.run),
        start=f"axolotl train {{file}}{count}",
    )


def _batch(run: Run, args: Values) -> dict[str, Any]:
    """Rows of exactly the run's length."""
    length = int(run.seq)
    data = {
        "sequence_len": length,
        "sample_packing": False,
        "pad_to_sequence_len": True,
        "micro_batch_size": args["per_device_train_batch_size"],
        "gradient_accumulation_steps": args["gradient_accumulation_steps"],
        "optimizer": args["optim"],
        "learning_rate": LEARNING_RATE,
        "num_epochs": 1,
        "max_grad_norm": args["max_grad_norm"],
    }
    data |= {"pad_to_multiple_of": length} if length % MULTIPLE else {}
    return data | ({"optim_args": args["optim_args"]} if "optim_args" in args else {})


def _precision(run: Run, program: Values) -> dict[str, Any]:
    """bf16 and fp16 are the dtype of the weights, with autocast; float16 has no autocast."""
    dtype, args = program["load"]["dtype"], program["args"]
    half = dtype == "float16" or args["fp16"]
    data: dict[str, Any] = {"bf16": dtype == "bfloat16" or args["bf16"]}
    if half:
        data["float16" if run.precision == "fp16_pure" and not run.autocast else "fp16"] = True
    data["attn_implementation"] = program["load"]["attn_implementation"]
    data |= {key: args[key] for key in ("torch_compile", "torch_compile_mode") if args.get(key)}
    return data | filled(freeze_mm_modules=bool(run.freeze_vision_tower))


def _recompute(run: Run, args: Values) -> dict[str, Any]:
    """Gradient checkpointing, and its variants that keep attention or offload inputs."""
    kept = run.rule.keeps == (ATTENTION,)
    if not args["gradient_checkpointing"] and not kept:
        return {"gradient_checkpointing": False}
    data: dict[str, Any] = {
        "gradient_checkpointing": True,
        "gradient_checkpointing_kwargs": {"use_reentrant": bool(run.reentrant)},
    }
    offload = "hidden_states" if run.rule.offload else ""
    return data | filled(selective_checkpointing=kept, activation_offloading=offload)


def _adapter(run: Run, program: Values) -> dict[str, Any]:
    """LoRA and bitsandbytes, with PEFT's own code, which is the one that is modelled."""
    peft, packed = program.get("peft"), program.get("quantization") or {}
    if not peft:
        return {}
    four = bool(packed.get("load_in_4bit"))
    data: dict[str, Any] = {"adapter": "qlora" if four else "lora", "load_in_4bit": four}
    data |= filled(load_in_8bit=packed.get("load_in_8bit"))
    data |= {"lora_r": peft["r"], **{key: peft[key] for key in ("lora_alpha", "lora_dropout")}}
    if peft.get("target_modules") == "all-linear":
        data["lora_target_linear"] = True
    else:
        assert run.adapter is not None
        data["lora_target_modules"] = sorted(run.adapter.targets)
    data |= filled(peft_use_dora=peft.get("use_dora"))
    if four:
        data |= _packed(packed, program["load"]["dtype"])
    return data | dict.fromkeys(FUSED, False)


def _packed(packed: Values, dtype: str) -> dict[str, Any]:
    """What differs from Axolotl's own configuration of bitsandbytes."""
    usual = {"bnb_4bit_use_double_quant": True, "bnb_4bit_compute_dtype": dtype}
    changed = {key: packed[key] for key, value in usual.items() if packed[key] != value}
    return {"bnb_config_kwargs": changed} if changed else {}


def _losses(run: Run, program: Values) -> dict[str, Any]:
    """Plugins for cut cross entropy and for Liger's kernels, each by its key."""
    data: dict[str, Any] = {}
    plugins = []
    if run.liger:
        plugins.append(LIGER_PLUGIN)
        on = [key for key, names in LIGER_KEYS.items() if set(names) & set(run.liger)]
        data |= {key: True for key in on if key != "liger_swiglu"}
    if run.loss == "cut":
        plugins.append(CUT_PLUGIN)
        data["cut_cross_entropy"] = True
    if run.loss == "flash_fused_inplace":
        data["flash_attn_cross_entropy"] = True
    return ({"plugins": plugins} if plugins else {}) | data


def _launch(resolved: ResolvedRun, program: Values) -> dict[str, Any]:
    """DeepSpeed's configuration inside the file, or FSDP's settings."""
    args = program["args"]
    own = {"accelerator_config": args["accelerator_config"]} if "accelerator_config" in args else {}
    if program.get("deepspeed"):
        return own | {"deepspeed": program["deepspeed"]}
    if resolved.engine.name != "fsdp":
        return own
    options = resolved.run.options
    version = int(options["fsdp_version"])
    config: dict[str, Any] = {
        "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "offload_params": bool(options["cpu_offload"]),
        "state_dict_type": state_dict_type(resolved.run),
    }
    if version == 1:
        config |= {key: bool(options[key]) for key in ("use_orig_params", "sync_module_states")}
    else:
        config["reshard_after_forward"] = options["sharding_strategy"] != "shard_grad_op"
        config["cpu_ram_efficient_loading"] = options.get("init_device") in (None, "meta")
    data = own | {"fsdp_version": version, "fsdp_config": config}
    if str(options["sharding_strategy"]).startswith("hybrid") and options["hybrid_shard_size"]:
        shards = int(options["hybrid_shard_size"])
        replicas = resolved.hardware.num_gpus // shards
        data |= {"dp_shard_size": shards, "dp_replicate_size": replicas}
    return data


def _evaluation(run: Run) -> dict[str, Any]:
    """An evaluation within the epoch, on a part of the data."""
    if run.evaluation is None:
        return {"val_set_size": 0.0}
    return {
        "val_set_size": 0.05,
        "evals_per_epoch": 2,
        "eval_batch_size": int(run.evaluation.batch),
        "eval_sequence_len": int(run.evaluation.seq),
    }
