"""Lightning's strategies as engine keys, with Lightning's own defaults.

lightning 2.6.6 pytorch/strategies: ddp.py, fsdp.py, deepspeed.py. A strategy is its name, or
{"name": "fsdp", "auto_wrap_policy": [...]} with arguments of its class.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...runfile.program import Section, Setup, Translation
from ..translation.arguments import tables
from .precision import precision_name

TABLES = tables(__file__)
AUTO = ("auto", "ddp")
# deepspeed.py __init__: defaults that are not DeepSpeed's own.
DEEPSPEED: dict[str, Any] = TABLES["deepspeed"]
STAGES = {"deepspeed": 2, "deepspeed_stage_1": 1, "deepspeed_stage_2": 2, "deepspeed_stage_3": 3}
FSDP_KEYS: dict[str, Any] = TABLES["fsdp_keys"]
REDUCE = {"16-mixed": "fp16", "bf16-mixed": "bf16", "16-true": "fp16", "bf16-true": "bf16"}


def add_strategy(values: Mapping[str, Any], setup: Setup, result: Translation) -> None:
    """Add the engine; every strategy that is not modelled is a problem."""
    given = values["strategy"]
    options = dict(given) if isinstance(given, Mapping) else {}
    name = str(options.pop("name", "") if options else given)
    result.problems += _device_problems(values, setup)
    if name == "auto" or name.startswith("ddp"):
        result.problems += [f"program.args.strategy.{key} is not read" for key in options]
    elif name == "fsdp":
        _add_fsdp(options, values, result)
    elif name in STAGES:
        _add_deepspeed(STAGES[name], options, values, result)
    else:
        choice = f"it can be {', '.join((*AUTO, 'fsdp', *STAGES))}"
        result.problems.append(f"program.args.strategy={name!r} is not modelled; {choice}")


def _device_problems(values: Mapping[str, Any], setup: Setup) -> list[str]:
    """Other accelerators, and devices that are not those of the hardware section."""
    problems = []
    if values["accelerator"] not in ("auto", "gpu", "cuda"):
        problems.append(f"program.args.accelerator={values['accelerator']!r} has no GPU; use 'gpu'")
    count, nodes = _device_count(values["devices"]), values["num_nodes"]
    if count and isinstance(nodes, int) and count * nodes != setup.num_gpus:
        given = f"program.args: {count} devices on {nodes} nodes, but {setup.num_gpus} GPUs"
        problems.append(f"{given}; set hardware.num_gpus={count * nodes}")
    return problems


def _device_count(devices: Any) -> int:
    """The number of devices of one node; 0 where Lightning counts them itself."""
    if isinstance(devices, list):
        return len(devices)
    words = [word for word in str(devices).split(",") if word.strip()]
    if len(words) > 1:
        return len(words)
    return int(words[0]) if words and words[0].strip().isdigit() else 0


def _add_fsdp(options: Section, values: Mapping[str, Any], result: Translation) -> None:
    """torch's FullyShardedDataParallel (version 1). plugins/precision/fsdp.py: parameters, buffers
    and reduction in the 16-bit dtype, with autocast around forward where it is mixed.
    """
    if not options.pop("auto_wrap_policy", None):
        why = "without auto_wrap_policy the whole model is one unit, which is not modelled"
        fix = "set strategy={'name': 'fsdp', 'auto_wrap_policy': ['the layer class']}"
        result.problems.append(f"program.args.strategy='fsdp': {why}; {fix}")
    if options.pop("activation_checkpointing_policy", None):
        result.training["activation_checkpointing"] = "full"
        result.training.pop("use_cache", None)
    result.problems += [
        f"program.args.strategy.{key} is not read; leave it out"
        for key in options
        if key not in FSDP_KEYS
    ]
    known = {key: options.get(key, value) for key, value in FSDP_KEYS.items()}
    known["sharding_strategy"] = str(known["sharding_strategy"]).lower()
    result.engine = {"type": "fsdp", "fsdp_version": 1, "init_device": "cpu", **known}
    if values["gradient_clip_val"] and values["gradient_clip_algorithm"] != "value":
        rule = "Lightning's FSDP clips by value only"
        result.problems.append(f"program.args.gradient_clip_val: {rule}; leave it out")
    precision, training = precision_name(values["precision"]), result.training
    if precision in REDUCE:
        result.engine["reduce_dtype"] = REDUCE[precision]
        training.pop("autocast_cache", None)
        if precision.endswith("-mixed"):
            training["autocast"] = True


def _add_deepspeed(
    stage: int, options: Section, values: Mapping[str, Any], result: Translation
) -> None:
    """DeepSpeed with the module's own AdamW, which it wraps; the model exists before it is sharded.
    DeepSpeed's step frees gradients itself.
    """
    result.problems += [
        f"program.args.strategy.{key} is not read; leave it out"
        for key in options
        if key not in DEEPSPEED
    ]
    result.engine = {"type": "deepspeed", "zero_stage": stage, **DEEPSPEED, **options}
    if stage == 3:
        result.engine["zero_init"] = False
    for key in ("zero_grad", "autocast_cache", "autocast"):
        result.training.pop(key, None)
    result.training.setdefault("optimizer_implementation", "foreach")
