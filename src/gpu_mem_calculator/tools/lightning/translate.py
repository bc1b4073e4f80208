"""L.Trainer around a model of transformers as keys of a run file.

lightning 2.6.6 pytorch/loops/optimization/automatic.py Closure: forward, then zero_grad, then
backward, so that the last step's gradients are alive in forward. The module does not turn off the
model's KV cache, as transformers' Trainer does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...runfile.program import Program, Section, Setup, Translation
from ..trainer.launch import first_device
from ..trainer.loading import add_adapters, add_attention
from ..trainer.precision import dtype_word
from .precision import precision_keys, precision_name
from .strategy import add_strategy

LOAD_KEYS = (
    *("dtype", "torch_dtype", "attn_implementation", "device_map", "trust_remote_code"),
    "use_cache",
)


def translate(program: Program, values: Mapping[str, Any], setup: Setup) -> Translation:
    """The keys of a module that returns its model's own loss and steps with torch's AdamW."""
    result = Translation()
    training = result.training
    training["batch_size"] = values["batch_size"]
    training["gradient_accumulation_steps"] = values["accumulate_grad_batches"]
    training["optimizer"] = "adamw"
    if values["fused"]:
        training["optimizer_implementation"] = "fused"
    if program.data.get("seq_len"):
        training["seq_len"] = program.data["seq_len"]
    training["zero_grad"] = "before_backward"
    _add_memory_savers(program, values, training)
    _add_loading(program, values, setup, result)
    _add_clipping(values, result)
    add_adapters(program, result, prepared=True)
    result.engine |= {"type": "pytorch_ddp", "init_device": first_device(program)}
    add_strategy(values, setup, result)
    return result


def _add_memory_savers(program: Program, values: Mapping[str, Any], training: Section) -> None:
    """Checkpointing; without it, the KV cache that a model makes unless `use_cache` is off
    (transformers 5.17.0 modeling_llama.py LlamaModel.forward).
    """
    if values["gradient_checkpointing"]:
        training["activation_checkpointing"] = "full"
    elif program.load.get("use_cache", True):
        training["use_cache"] = True


def _add_loading(
    program: Program, values: Mapping[str, Any], setup: Setup, result: Translation
) -> None:
    load = program.load
    result.problems += [
        f"program.load.{name} is not read; leave it out" for name in load if name not in LOAD_KEYS
    ]
    dtype = load.get("dtype", load.get("torch_dtype", "auto"))
    if dtype == "auto":
        stored = setup.model().stored_dtype
        dtype = stored or "bfloat16"
        source = "as the checkpoint says" if stored else "as most checkpoints have it"
        result.assumed.append(f"program.load.dtype={dtype}, {source}")
    keys = precision_keys(values["precision"], dtype_word(dtype), program.peft is not None)
    if isinstance(keys, str):
        result.problems.append(keys)
    else:
        result.training |= keys
    add_attention(load, result)


def _add_clipping(values: Mapping[str, Any], result: Translation) -> None:
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
