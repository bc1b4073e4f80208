"""L.Trainer around a model of transformers as keys of a run file.

lightning 2.6.6 pytorch/loops/optimization/automatic.py Closure: forward, then zero_grad, then
backward, so that the last step's gradients are alive in forward. The module does not turn off the
model's KV cache, as transformers' Trainer does.

- strategies (pytorch/strategies ddp.py, fsdp.py, deepspeed.py): a name, or {"name": "fsdp",
  "auto_wrap_policy": [...]} with arguments of its class, whose defaults are Lightning's own
- precision (pytorch/plugins/precision): *-mixed runs forward under autocast without its cache of
  casts (amp.py), *-true casts the whole module (half.py), 32-true leaves the weights as they were
  loaded (precision.py)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...runfile.program import Program, Section, Setup, Translation
from ..trainer.launch import first_device
from ..trainer.loading import add_adapters, add_attention, add_keys, load_dtype, name_strangers
from ..translation.arguments import Values, filled, tables

# fabric/plugins/precision/utils.py: other spellings.
ALIASES = {"16": "16-mixed", "bf16": "bf16-mixed", "32": "32-true", "64": "64-true"}
MIXED = {"16-mixed": "float16", "bf16-mixed": "bfloat16"}
TRUE = {"16-true": "fp16_pure", "bf16-true": "bf16_pure"}
PURE = {"float32": "fp32", "bfloat16": "bf16_pure", "float16": "fp16_pure"}
NAMES = (*MIXED, *TRUE, "32-true")
TABLES = tables(__file__)
AUTO = ("auto", "ddp")
# deepspeed.py __init__: defaults that are not DeepSpeed's own.
DEEPSPEED: dict[str, Any] = TABLES["deepspeed"]
STAGES = {"deepspeed": 2, "deepspeed_stage_1": 1, "deepspeed_stage_2": 2, "deepspeed_stage_3": 3}
FSDP_KEYS: dict[str, Any] = TABLES["fsdp_keys"]
REDUCE = {"16-mixed": "fp16", "bf16-mixed": "bf16", "16-true": "fp16", "bf16-true": "bf16"}


def translate(program: Program, values: Values, setup: Setup) -> Translation:
    """The keys of a module that returns its model's own loss and steps with torch's AdamW."""
    result = Translation()
    training = result.training
    training["batch_size"] = values["batch_size"]
    training["gradient_accumulation_steps"] = values["accumulate_grad_batches"]
    training["optimizer"] = "adamw"
    fused = "fused" if values["fused"] else ""
    training |= filled(optimizer_implementation=fused, seq_len=program.data.get("seq_len"))
    training["zero_grad"] = "before_backward"
    _add_memory_savers(program, values, training)
    dtype = load_dtype(program.load, setup, result, "use_cache")
    add_keys(result, precision_keys(values["precision"], dtype, program.peft is not None))
    add_attention(program.load, result)
    _add_clipping(values, result)
    add_adapters(program, result, prepared=True)
    result.engine |= {"type": "pytorch_ddp", "init_device": first_device(program)}
    add_strategy(values, setup, result)
    _add_validation(program, values, training)
    return result


def _add_validation(program: Program, values: Values, training: Section) -> None:
    """A module's validation, where `data` says that there is one: batches without gradients after
    steps, and before the first one as a check (trainer.py _run_sanity_check).
    """
    data = program.data
    if data.get("evaluates") and values["limit_val_batches"] != 0 and "compile" not in training:
        training["evaluation"] = {
            "batch_size": data.get("eval_batch_size", values["batch_size"]),
            **filled(seq_len=data.get("eval_seq_len")),
        }


def _add_memory_savers(program: Program, values: Values, training: Section) -> None:
    """Checkpointing; without it, the KV cache that a model makes unless `use_cache` is off
    (transformers 5.17.0 modeling_llama.py LlamaModel.forward).
    """
    if values["gradient_checkpointing"]:
        training["activation_checkpointing"] = "full"
    elif program.load.get("use_cache", True):
        training["use_cache"] = True


def _add_clipping(values: Values, result: Translation) -> None:
    """Gradient clipping by norm; by value it works in place (torch nn/utils/clip_grad.py).

    Not with a fused optimizer that unscales gradients itself (plugins/precision/amp.py
    clip_gradients).
    """
    clip = values["gradient_clip_val"] or 0
    by_value = values["gradient_clip_algorithm"] == "value"
    result.training["gradient_clipping"] = 0 if by_value else clip
    if clip and values["fused"] and precision_name(values["precision"]) == "16-mixed":
        rule = "Lightning does not clip gradients for a fused optimizer under 16-mixed"
        result.problems.append(f"program.args.gradient_clip_val={clip}: {rule}; leave one out")


def precision_name(value: Any) -> str:
    """The full name of a precision; None is 32-true."""
    word = "32-true" if value is None else str(value)
    return ALIASES.get(word, word)


def precision_keys(value: Any, dtype: str, adapters: bool) -> dict[str, Any] | str:
    """Our keys for weights that were loaded in `dtype`, or a sentence."""
    name = precision_name(value)
    given = f"program.args.precision={name!r}"
    if name not in NAMES:
        return f"{given} is not modelled; it can be {', '.join(NAMES)}"
    if dtype not in PURE:
        return f"program.load.dtype={dtype!r} must be 'float32', 'bfloat16' or 'float16'"
    if name in TRUE:
        return {"precision": TRUE[name]}
    if name == "32-true":
        return {"precision": PURE[dtype]}
    if dtype == "float32":
        return {"precision": f"{PURE[MIXED[name]][:4]}_mixed", "autocast_cache": False}
    if dtype != MIXED[name]:
        return f"{given} with weights in {dtype} is not modelled; load them in float32"
    if dtype == "float16" and not adapters:
        error = "torch's gradient scaler refuses gradients in float16"
        return f"{given}: {error}; load the weights in float32"
    return {"precision": PURE[dtype], "autocast": True, "autocast_cache": False}


def add_strategy(values: Values, setup: Setup, result: Translation) -> None:
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


def _device_problems(values: Values, setup: Setup) -> list[str]:
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


def _add_fsdp(options: Section, values: Values, result: Translation) -> None:
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
    sharded = options.pop("state_dict_type", "full") == "sharded"
    result.training["saving"] = "sharded_on_host" if sharded else "full_state_dict"
    name_strangers(result, "args.strategy", options, FSDP_KEYS)
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


def _add_deepspeed(stage: int, options: Section, values: Values, result: Translation) -> None:
    """DeepSpeed with the module's own AdamW, which it wraps; the model exists before it is sharded.
    DeepSpeed's step frees gradients itself.
    """
    name_strangers(result, "args.strategy", options, DEEPSPEED)
    result.engine = {"type": "deepspeed", "zero_stage": stage, **DEEPSPEED, **options}
    if stage == 3:
        result.engine["zero_init"] = False
    for key in ("zero_grad", "autocast_cache", "autocast"):
        result.training.pop(key, None)
    result.training.setdefault("optimizer_implementation", "foreach")
