"""The launch of a program of Hugging Face's tools: DeepSpeed's JSON, FSDP's settings, or none.

transformers 5.17.0 training_args.py (_process_fsdp_args); accelerate 1.15.0
commands/config/config_args.py ClusterConfig, utils/dataclasses.py DeepSpeedPlugin.
"""

from __future__ import annotations

from typing import Any

from ...run.recompute import FULL
from ...run.run import FULL_DICT, Run
from ...runfile.config import RunFile
from ...runfile.resolve.resolved_run import ResolvedRun
from ...runfile.text.errors import InputError
from ...training.engines.deepspeed.options import OPTIONS as DEEPSPEED_OPTIONS
from ..deepspeed.auto import AUTO
from ..deepspeed.batch import MICRO, STEPS, TRAIN
from ..deepspeed.write import write as write_deepspeed

ENGINES = ("pytorch_ddp", "deepspeed", "fsdp")  # those that Trainer and Accelerate start
LAYERS = "TRANSFORMER_BASED_WRAP"  # one unit a layer, by the model's own names
COMPLETED = (TRAIN, MICRO, STEPS, "gradient_clipping")  # by Trainer
# Options of FSDP 1, and Accelerate's names.
VERSION_1 = ("use_orig_params", "sync_module_states", "forward_prefetch")


def launch_problem(title: str, resolved: ResolvedRun) -> str:
    """Why Hugging Face's tools cannot start a run, in a sentence; empty where they can."""
    engine, mesh = resolved.engine, resolved.run.mesh
    if engine.name not in ENGINES:
        return f"{engine.title} is not started by {title}; choose engine {', '.join(ENGINES)}"
    sizes = {name: int(getattr(mesh, name)) for name in ("tp", "pp", "cp")}
    split = [f"{name} {size}" for name, size in sizes.items() if size > 1]
    if split:
        return f"{title} has no key for {' and '.join(split)}; set them to 1"
    return ""


def launch_sections(title: str, file: RunFile, resolved: ResolvedRun) -> dict[str, Any]:
    """The keys `deepspeed`, `fsdp_config` or `accelerate` of a `program` section."""
    problem = launch_problem(title, resolved)
    if problem:
        raise InputError(problem)
    if resolved.engine.name == "deepspeed":
        return {"deepspeed": trainer_deepspeed(file, resolved)}
    if resolved.engine.name == "fsdp":
        if resolved.run.options["fsdp_version"] == 1:
            return {"accelerate": accelerate_data(file, resolved)}
        return {"fsdp_config": fsdp_settings(resolved.run)}
    return {}


def trainer_deepspeed(file: RunFile, resolved: ResolvedRun) -> dict[str, Any]:
    """DeepSpeed's JSON for Trainer, which completes `auto` and makes the optimizer itself."""
    data = write_deepspeed(file, resolved)
    data.pop("optimizer")
    data.pop("activation_checkpointing", None)
    return data | dict.fromkeys(COMPLETED, AUTO)


def fsdp_settings(run: Run) -> dict[str, Any]:
    """`fsdp_config` of TrainingArguments for FSDP 2."""
    settings: dict[str, Any] = {
        "version": 2,
        "reshard_after_forward": run.options["sharding_strategy"] != "shard_grad_op",
        "auto_wrap_policy": LAYERS,
    }
    if run.options["cpu_offload"]:
        settings["cpu_offload"] = True
    if run.saving == FULL_DICT:
        settings["state_dict_type"] = state_dict_type(run)
    if run.loading:
        settings["cpu_ram_efficient_loading"] = True
    return settings


def state_dict_type(run: Run) -> str:
    """How Accelerate is asked to save."""
    return "FULL_STATE_DICT" if run.saving == FULL_DICT else "SHARDED_STATE_DICT"


def accelerate_data(file: RunFile, resolved: ResolvedRun) -> dict[str, Any]:
    """The data of Accelerate's configuration file."""
    hardware, engine = resolved.hardware, resolved.engine.name
    kind = {"deepspeed": "DEEPSPEED", "fsdp": "FSDP"}.get(engine)
    data: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": kind or ("MULTI_GPU" if hardware.num_gpus > 1 else "NO"),
        "mixed_precision": mixed_precision(resolved.run) or "no",
        "num_machines": hardware.num_nodes,
        "num_processes": hardware.num_gpus,
        "machine_rank": 0,
        "main_training_function": "main",
    }
    if hardware.num_nodes > 1:
        data |= {"main_process_ip": "HOST", "main_process_port": 29500, "rdzv_backend": "static"}
    if engine == "fsdp":
        data["fsdp_config"] = _accelerate_fsdp(resolved.run)
    elif engine == "deepspeed":
        data["deepspeed_config"] = _accelerate_deepspeed(file, resolved)
        if "deepspeed_config_file" in data["deepspeed_config"]:
            del data["mixed_precision"]  # Accelerate refuses both
    return data


def mixed_precision(run: Run) -> str:
    """The mixed precision that Accelerate is asked for: bf16, fp16 or empty."""
    width, _, kind = run.precision.partition("_")
    return width if kind == "mixed" or run.autocast else ""


def _accelerate_fsdp(run: Run) -> dict[str, Any]:
    options = run.options
    version, strategy = options["fsdp_version"], str(options["sharding_strategy"])
    settings: dict[str, Any] = {
        "fsdp_version": version,
        "fsdp_reshard_after_forward": strategy != "shard_grad_op",
        "fsdp_offload_params": bool(options["cpu_offload"]),
        "fsdp_auto_wrap_policy": LAYERS,
        "fsdp_state_dict_type": state_dict_type(run),
        "fsdp_cpu_ram_efficient_loading": bool(run.loading),
        "fsdp_activation_checkpointing": run.recompute == FULL,
    }
    if version == 1:
        prefetch = str(options["backward_prefetch"]).upper()
        settings["fsdp_reshard_after_forward"] = strategy.upper()
        settings["fsdp_sharding_strategy"] = strategy.upper()
        settings["fsdp_backward_prefetch"] = "NO_PREFETCH" if prefetch == "NONE" else prefetch
        settings |= {f"fsdp_{name}": bool(options[name]) for name in VERSION_1}
    return settings


def _accelerate_deepspeed(file: RunFile, resolved: ResolvedRun) -> dict[str, Any]:
    """Accelerate's own keys where they say all of it, else the name of DeepSpeed's JSON."""
    run = resolved.run
    stage = int(run.options["zero_stage"])
    own = {"zero_stage", "zero_init", "pin_memory", "partition_method"}
    changed = [
        key
        for key, default in DEEPSPEED_OPTIONS.items()
        if key not in own and run.options.get(key, default) != default
    ]
    init = {"zero3_init_flag": bool(stage == 3 and run.options["zero_init"])}
    if changed:
        return {"deepspeed_config_file": "ds_config.json", **init}
    clipping = file.training.gradient_clipping
    return {
        "zero_stage": stage,
        "gradient_accumulation_steps": int(run.micro_batches),
        "gradient_clipping": 1.0 if clipping is None else clipping,
        "offload_optimizer_device": "none",
        "offload_param_device": "none",
        **init,
    }
