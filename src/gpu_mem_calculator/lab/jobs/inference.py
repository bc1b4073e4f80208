"""Inference with transformers: the prompt alone, or `generate` to the last token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import to_builtins

from ...runfile.config import InferenceConfig, ModelConfig
from ...runfile.find_model.model_source import find_model
from ...runfile.read import section
from ...runfile.resolve.resolve_inference import find_server, inference_options
from ...runfile.resolve.serving_question import length_problems
from ...runfile.text.errors import InputError, Problems
from ...serving.transformers.checks import option_problems
from .job import World
from .model import auto_config, import_extra, torch_dtype
from .quantized import QuantizationSettings, quantize

THRESHOLD = 6.0  # transformers' llm_int8_threshold: larger numbers are outliers
# Key of the run file -> argument of `generate`.
SAME = "cache_implementation num_beams num_return_sequences do_sample top_k top_p"
ARGUMENTS = {"new_tokens": "max_new_tokens", **{key: key for key in SAME.split()}}


def settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """The options of an inference section with their defaults; options that transformers lacks are
    refused.

    `new_tokens` 0 runs the prompt alone and keeps its KV cache.
    """
    config = section("inference", InferenceConfig, values)
    engine = find_server(config)
    if engine.name != "transformers":
        why = "cannot be run here, only estimated; use 'transformers'"
        raise InputError(f"inference.engine={config.engine!r} {why}")
    problems = Problems()
    options: dict[str, Any] = problems.attempt(inference_options, config)
    chosen = {k: v for k, v in to_builtins(config).items() if k in engine.options and v is not None}
    problems += (*option_problems({**engine.options, **chosen}), *length_problems(engine, chosen))
    if problems:
        raise InputError(problems)
    return options


def infer(values: Mapping[str, Any], config: Mapping[str, Any], world: World) -> None:
    """Load the model of a config.json and run it; marks "load", then "prefill" or "generate"."""
    torch = import_extra("torch", "measure")
    chosen = settings(values)
    torch.manual_seed(0)
    model = _load(config, chosen, world)
    assistant = _assistant(chosen, world)
    if world.watch is not None:
        world.watch(model, None)
    world.mark("load")
    shape = (chosen["batch_size"], chosen["prompt_len"])
    # no token is 0, which pads: a padded prompt needs masks that a full one does not
    ids = torch.randint(1, model.config.get_text_config().vocab_size, shape, device=world.device)
    with torch.inference_mode():
        if not chosen["new_tokens"]:
            output = model(ids, use_cache=True)
            world.mark("prefill")
            del output
        else:
            _generate(model, ids, chosen, assistant)
            world.mark("generate")


def _load(config: Mapping[str, Any], chosen: Mapping[str, Any], world: World) -> Any:
    """The model with random weights on the world's device, quantized where the options say so."""
    torch, transformers = import_extra("torch", "measure"), import_extra("transformers", "measure")
    auto = auto_config(config)
    if chosen["attention"] is not None:  # else transformers takes the model's default
        auto._attn_implementation = chosen["attention"]
    dtype, name = torch_dtype(chosen["dtype"]), chosen["quantization"]
    if name == "none":
        with torch.device(world.device):
            model = transformers.AutoModelForCausalLM.from_config(auto, dtype=dtype)
    else:
        quantization = config.get("quantization_config") or {}
        double = bool(quantization.get("bnb_4bit_use_double_quant", False))
        form = QuantizationSettings(
            name=name, double=double, threshold=THRESHOLD, dtype=dtype, device=world.device
        )
        model = quantize(auto, form)
    model.eval()
    model.to(world.device)
    return model


def _assistant(chosen: Mapping[str, Any], world: World) -> Any:
    """The assistant model of speculative decoding, or None; its confidence threshold is 0."""
    name_or_config = chosen["speculative_model"]
    if name_or_config is None:
        return None
    named = isinstance(name_or_config, str)
    section = ModelConfig(**{"name" if named else "config": name_or_config})
    config = find_model(section).config
    assert config is not None
    model = _load(config, {**chosen, "quantization": "none"}, world)
    if chosen["num_speculative_tokens"] is not None:
        model.generation_config.num_assistant_tokens = chosen["num_speculative_tokens"]
    model.generation_config.assistant_confidence_threshold = 0.0
    return model


def _generate(model: Any, ids: Any, chosen: Mapping[str, Any], assistant: Any) -> None:
    """Generate exactly `new_tokens` tokens for every sequence; not compiled, as a static cache
    would be by default.
    """
    for one in (model, assistant):
        if one is not None:
            one.generation_config.eos_token_id = None
            one.generation_config.pad_token_id = 0
    arguments = {name: chosen[key] for key, name in ARGUMENTS.items() if chosen[key] is not None}
    if chosen["cache_implementation"] == "dynamic":  # the default, unnamed in transformers
        del arguments["cache_implementation"]
    if not chosen["do_sample"]:
        for name in ("top_k", "top_p"):
            arguments.pop(name, None)
    if chosen["cache_implementation"] == "static" and chosen["max_seq_len"] is not None:
        arguments["max_cache_len"] = chosen["max_seq_len"]
    arguments |= {"min_new_tokens": chosen["new_tokens"], "disable_compile": True}
    model.generate(ids, **arguments, assistant_model=assistant)
