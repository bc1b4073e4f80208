"""What the options of `vllm serve` mean as the `inference` section of a run file.

Of speculative decoding they are --speculative-config and the options for its fields; the method
follows from the draft's name where it is left out (vllm 0.33.0 vllm/config/speculative.py
SpeculativeConfig).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from ...runfile.text.errors import InputError, quoted
from ..reading.option_values import (
    add_limit,
    chosen,
    json_object,
    option,
    real_number,
    truth,
    whole_number,
    whole_numbers,
)
from ..reading.reading import Limit, Reading, Section
from ..reading.server_options import dtype_keys, plain_keys, quantization_key
from ..translation.arguments import tables
from .words import UNITS

TABLES = tables(__file__)
CONFIG = "speculative_config"
CONNECTOR = "kv_transfer_config.kv_connector"
# Other options for a field: those of 0.33.0, and those of V0.
SHORT: dict[str, Any] = TABLES["short"]
MODELLED = ("ngram", "draft_model", "eagle", "eagle3", "mtp")
WITHOUT_MODEL = ("ngram", "mtp")
# Parts of a draft's name, in this order, and the method that follows.
BY_NAME = (("eagle-", "eagle"), ("eagle3", "eagle3"), ("dflash", "dflash"), ("dspark", "dspark"))
# Options whose key has the same meaning, and the units that they take.
COUNTS, SHARES = (
    tuple(TABLES["counts"]),
    ("gpu_memory_utilization", "cpu_offload_gb", "kv_offloading_size", "swap_space"),
)
SIZES, FLAGS = ({name: name for name in TABLES[kind]} for kind in ("sizes", "flags"))
CACHES: dict[str, str] = TABLES["caches"]  # "auto" is the model's own
# Formats that vLLM quantizes to while it loads, and AWQ, as a run file names them; empty where they
# are not modelled. Others are the checkpoint's own.
ONLINE: dict[str, str] = TABLES["online"]
GRAPH_MODES = ("none", "piecewise", "full", "full_decode_only", "full_and_piecewise")
COMPILED = (3, "VLLM_COMPILE", "vllm_compile")  # modes of vLLM's compiler; the default
LOADERS = ("fastsafetensors", "instanttensor")  # read files to the GPU first


def speculation(reading: Reading, given: Mapping[str, Any]) -> Section:
    """Keys of `inference`; a method that is not modelled becomes a limit."""
    fields = {name: _field(name, given) for name in SHORT}
    model, tokens = fields["model"], fields["num_speculative_tokens"]
    if fields["method"] is None and model is None:
        return {}
    if model is not None and not isinstance(model, str):
        raise InputError(f"{option(CONFIG)}.model={quoted(model)} must be a model's name")
    method = _method(fields["method"], model)
    if method not in MODELLED:
        why = "is a draft that is not modelled"
        reading.limits.append(Limit(key=f"{option(CONFIG)}.method={method}", why=why, could="more"))
        return {}
    section: Section = {"speculative_method": method}
    if model is not None and method not in WITHOUT_MODEL:
        section["speculative_model"] = model
    if tokens is not None:
        section["num_speculative_tokens"] = whole_number(f"{CONFIG}.num_speculative_tokens", tokens)
    return section


def _field(name: str, given: Mapping[str, Any]) -> Any:
    names = (f"{CONFIG}.{name}", *SHORT[name])
    return next((given[one] for one in names if given.get(one) is not None), None)


def _method(method: Any, model: str | None) -> str:
    """The method, also where it follows from the draft's name."""
    name = str(method) if method is not None else ""
    if name == "mtp" or name.endswith("_mtp"):
        return "mtp"
    if name not in ("", "draft_model") or model is None:
        return name
    lower = model.lower()
    if lower in ("ngram", "[ngram]"):
        return "ngram"
    return next((kind for part, kind in BY_NAME if part in lower), "draft_model")


def inference_section(reading: Reading, given: Mapping[str, Any]) -> Section:
    """The section for options that are sorted; what is not modelled becomes a limit."""
    section: Section = {"engine": "vllm"}
    section |= plain_keys(given, SIZES, partial(whole_number, units=UNITS))
    section |= plain_keys(given, FLAGS, truth)
    for name in (*COUNTS, *SHARES):
        if name in given:
            section[name] = (whole_number if name in COUNTS else real_number)(name, given[name])
    for part in (_dtypes, _context, _graphs, _adapters, _images):
        section |= part(reading, given)
    section |= speculation(reading, given)
    ranks = section.get("tensor_parallel_size", 1) * section.get("data_parallel_size", 1)
    if given.get("enable_expert_parallel") and ranks > 1:
        section["expert_parallel_size"] = ranks
    section.setdefault("tensor_parallel_size", 1)
    return section


def _dtypes(reading: Reading, given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Keys for the dtypes of weights and cache."""
    yield from dtype_keys(reading, given, CACHES)
    method, loader = str(given.get("quantization")), str(given.get("load_format", "auto"))
    name = "bitsandbytes" if loader == "bitsandbytes" else method
    yield from quantization_key(reading, name, ONLINE)
    if loader in LOADERS:
        why = "reads files to the GPU before they are the model's weights"
        add_limit(reading, "load_format", loader, why, "more")


def _context(reading: Reading, given: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """The key for the longest sequence."""
    length = given.get("max_model_len")
    if length in (-1, "auto"):
        why = "vLLM takes the longest that fits, as the first line says; the model's is estimated"
        add_limit(reading, "max_model_len", length, why, "less")
    elif length is not None:
        yield "max_seq_len", whole_number("max_model_len", length, UNITS)
    elif (stretched := _stretched(given)) is not None:
        yield "max_seq_len", stretched
    elif any(name in given for name in ("rope_scaling", "rope_theta")):
        name = "rope_scaling" if "rope_scaling" in given else "rope_theta"
        why = "may allow longer sequences; set --max-model-len"
        add_limit(reading, name, given[name], why, "more")


def _stretched(given: Mapping[str, Any]) -> int | None:
    """Positions that --hf-overrides gives the model."""
    positions = given.get("hf_overrides.max_position_embeddings")
    if positions is not None:
        return whole_number("hf_overrides.max_position_embeddings", positions)
    for key in ("hf_overrides.rope_parameters", "hf_overrides.rope_scaling"):
        scaling = given.get(key)
        if isinstance(scaling, Mapping) and "factor" in scaling:
            original = scaling.get("original_max_position_embeddings")
            if original is not None:
                factor = real_number(f"{key}.factor", scaling["factor"])
                return int(factor * whole_number(f"{key}.original", original))
    return None


def _graphs(reading: Reading, given: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Keys for CUDA graphs."""
    yield from _compilation(reading, given)
    for name in ("compilation_config.max_cudagraph_capture_size", "max_cudagraph_capture_size"):
        if given.get(name) is not None:
            yield "max_cudagraph_capture_size", whole_number(name, given[name], least=0)
    sizes = given.get("cuda_graph_sizes")
    if isinstance(sizes, list) and len(sizes) == 1:
        yield "max_cudagraph_capture_size", whole_number("cuda_graph_sizes", sizes[0])
        sizes = None
    both = ("compilation_config.cudagraph_capture_sizes", "cudagraph_capture_sizes")
    for value in map(given.get, both):
        sizes = value if value is not None else sizes
    if sizes is not None:
        yield "cudagraph_capture_sizes", whole_numbers("cudagraph_capture_sizes", sizes)


def _compilation(reading: Reading, given: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Keys for how layers are compiled and captured; without both it is enforce_eager.

    vllm 0.33.0 vllm/config/vllm.py OPTIMIZATION_LEVEL_00 to 03.
    """
    level = whole_number("optimization_level", given.get("optimization_level", 2), least=0)
    mode = given.get("compilation_config.cudagraph_mode")
    if mode is None and level < 2:
        mode = level
    graphs = None
    if mode is not None:
        named = str(GRAPH_MODES[mode] if mode in (0, 1, 2) else mode).lower()
        graphs = chosen("compilation_config.cudagraph_mode", named, GRAPH_MODES)
    names = ("compilation_config.level", "compilation_config.mode", "optimization_level")
    plain = [one for one in names if one in given and given[one] not in COMPILED]
    plain = [one for one in plain if one != "optimization_level" or level == 0]
    if plain and graphs == "none":
        yield "enforce_eager", True
    elif plain:
        why = "runs layers without vLLM's compiler but with graphs, which is not modelled"
        add_limit(reading, plain[0], given[plain[0]], why, "more")
    if graphs is not None and not (plain and graphs == "none"):
        yield "cudagraph_mode", graphs


def _adapters(reading: Reading, given: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Keys for LoRA adapters, whose slots are allocated with --enable-lora alone."""
    if given.get("enable_lora"):
        yield "max_lora_rank", whole_number("max_lora_rank", given.get("max_lora_rank", 16))
        if "max_loras" in given:
            yield "max_loras", whole_number("max_loras", given["max_loras"])


def _images(reading: Reading, given: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Keys for the vision tower.

    It is not loaded if no image and no video is allowed (vllm/model_executor/models/interfaces.py
    _mark_tower_model).
    """
    mode = given.get("mm_encoder_tp_mode", "weights")
    if given.get("enable_multimodal_encoder_data_parallel"):
        mode = "data"
    if chosen("mm_encoder_tp_mode", mode, ("weights", "data")) == "data":
        yield "mm_encoder_tp_mode", "data"
    limits = json_object("limit_mm_per_prompt", given.get("limit_mm_per_prompt") or {})
    counts = {kind: _count(kind, value) for kind, value in limits.items()}
    if counts and not any(counts.values()) and {"image", "video"} <= counts.keys():
        yield "language_model_only", True
    elif counts.get("image"):
        yield "limit_mm_per_prompt", {"image": counts["image"]}
    elif "image" in counts:
        why = "allows no images, so that the vision tower may be left out"
        add_limit(reading, "limit_mm_per_prompt", limits, why, "less")


def _count(kind: str, value: Any) -> int:
    """Items of a kind in a prompt; an object also has the size of the profile run's items."""
    count = value.get("count", 1) if isinstance(value, Mapping) else value
    return whole_number(f"limit_mm_per_prompt.{kind}", count, least=0)
