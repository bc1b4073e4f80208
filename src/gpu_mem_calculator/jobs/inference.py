"""Inference with transformers: a prompt through the model, or whole generations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..core.errors import InputError, nearest
from .job import World
from .model import needed

DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
ENGINES = ("transformers", "huggingface")
DEFAULTS: dict[str, Any] = {
    "engine": "transformers", "batch_size": 1, "prompt_len": 1024, "new_tokens": 8,
    "dtype": "bf16", "attention": "sdpa", "quantization": "none", "kv_cache_dtype": "auto",
    "tensor_parallel_size": 1, "pipeline_parallel_size": 1, "max_seq_len": None,
}  # fmt: skip
ONE_VALUE = {"quantization": "none", "kv_cache_dtype": "auto", "tensor_parallel_size": 1,
             "pipeline_parallel_size": 1}  # fmt: skip


def settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """An inference section over its defaults; what a plain transformers program has not, refused.

    `new_tokens` 0 is a prompt alone, with its keys and values kept.
    """
    found = {**DEFAULTS, **{key: value for key, value in given.items() if value is not None}}
    problems = [
        f"inference.{key} is not an option of transformers' generate{nearest(key, DEFAULTS)}"
        for key in found if key not in DEFAULTS
    ]  # fmt: skip
    if found["engine"] not in ENGINES:
        problems.append(f"inference.engine={found['engine']!r} is not run here, only transformers; "
                        "set inference.engine='transformers'")  # fmt: skip
    if found["dtype"] not in DTYPES:
        problems.append(f"inference.dtype={found['dtype']!r} must be one of {', '.join(DTYPES)}")
    problems += [
        f"inference.{key}={found[key]!r} is not run here; set it to {value!r}"
        for key, value in ONE_VALUE.items() if found[key] != value
    ]  # fmt: skip
    length = found["prompt_len"] + found["new_tokens"]
    if found["max_seq_len"] is not None and length > found["max_seq_len"]:
        problems.append(f"inference.prompt_len + new_tokens is {length}, more than "
                        f"max_seq_len={found['max_seq_len']}")  # fmt: skip
    if problems:
        raise InputError(problems)
    return found


def infer(given: Mapping[str, Any], config: Mapping[str, Any], world: World) -> None:
    """Load the model of a config.json and run it; marks "load", then "prefill" or "generate"."""
    torch, transformers = needed("torch", "measure"), needed("transformers", "measure")
    chosen = settings(given)
    values = {key: value for key, value in config.items() if key != "architectures"}
    made = transformers.AutoConfig.for_model(values.pop("model_type"), **values)
    made._attn_implementation = chosen["attention"]
    torch.manual_seed(0)
    dtype = getattr(torch, DTYPES[chosen["dtype"]])
    with torch.device(world.device):
        model = transformers.AutoModelForCausalLM.from_config(made, dtype=dtype)
    model.eval()
    model.to(world.device)
    world.mark("load")
    shape = (chosen["batch_size"], chosen["prompt_len"])
    ids = torch.randint(0, made.get_text_config().vocab_size, shape, device=world.device)
    with torch.inference_mode():
        if not chosen["new_tokens"]:
            output = model(ids, use_cache=True)
            world.mark("prefill")
            del output
        else:
            _generate(model, ids, chosen["new_tokens"])
            world.mark("generate")


def _generate(model: Any, ids: Any, count: int) -> None:
    """So many tokens for every sequence, whatever they are."""
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    model.generate(ids, max_new_tokens=count, min_new_tokens=count, do_sample=False)
