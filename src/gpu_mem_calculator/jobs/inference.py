"""Inference with transformers: a prompt through the model, or whole generations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..core.inference_config import InferenceConfig
from ..core.runfile import section
from ..core.serving import inference_options
from .job import World
from .model import needed

DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


def settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """An inference section over its defaults; what a plain transformers program has not, refused.

    `new_tokens` 0 is a prompt alone, with its keys and values kept.
    """
    return inference_options(section("inference", InferenceConfig, given))


def infer(given: Mapping[str, Any], config: Mapping[str, Any], world: World) -> None:
    """Load the model of a config.json and run it; marks "load", then "prefill" or "generate"."""
    torch, transformers = needed("torch", "measure"), needed("transformers", "measure")
    chosen = settings(given)
    values = {key: value for key, value in config.items() if key != "architectures"}
    made = transformers.AutoConfig.for_model(values.pop("model_type"), **values)
    if given.get("attention") is not None:  # left out, transformers takes what the model has
        made._attn_implementation = chosen["attention"]
    torch.manual_seed(0)
    dtype = getattr(torch, DTYPES[chosen["dtype"]])
    with torch.device(world.device):
        model = transformers.AutoModelForCausalLM.from_config(made, dtype=dtype)
    model.eval()
    model.to(world.device)
    world.mark("load")
    shape = (chosen["batch_size"], chosen["prompt_len"])
    # no token is 0, which pads: a padded prompt would make masks that a full one does not
    ids = torch.randint(1, made.get_text_config().vocab_size, shape, device=world.device)
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
