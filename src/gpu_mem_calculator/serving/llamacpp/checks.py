"""What llama.cpp refuses of a model and of its cache, and what is not modelled."""

from __future__ import annotations

from collections.abc import Iterator

from ...model.blocks import Attention, LatentAttention, Mixer, Mlp, Moe, Recurrence, StateSpace
from ...run.run import Run
from ...weights import gguf
from .cache import whole_blocks
from .graph_tensors import quantized
from .layout import CACHE_TYPES, cache_types, file_type, known_types, planned
from .versions import DELTA, LATENT

# Families with caches of their own kind, which are not laid out here.
UNREAD = frozenset({"deepseek_v32", "glm_moe_dsa", "gemma3n", "gemma4", "gemma4_text"})
# Those whose graphs were laid beside llama.cpp's own, tensor by tensor.
CHECKED = frozenset({
    "baichuan", "bloom", "chatglm", "cohere", "cohere2", "deepseek", "deepseek_v2", "deepseek_v3",
    "falcon", "gemma", "gemma2", "gemma3", "gemma3_text", "glm", "glm4", "glm4_moe", "gpt_neox",
    "gpt_oss", "gpt2", "granite", "jamba", "kimi_k2", "llama", "llama4", "mamba2", "mistral",
    "mixtral", "mpt", "nemotron_h", "olmo2", "olmoe", "phi", "phi3", "phimoe", "plain", "qwen2",
    "qwen2_moe", "qwen3", "qwen3_5", "qwen3_5_moe", "qwen3_moe", "qwen3_next", "starcoder2",
})  # fmt: skip


def _known(mixer: Mixer) -> bool:
    """Whether a mixer's graph is modelled."""
    if isinstance(mixer, Recurrence):
        return mixer.kind == "gated_delta"
    if isinstance(mixer, Attention):
        return not (mixer.cross or mixer.borrowed or mixer.reuses or mixer.index)
    return isinstance(mixer, LatentAttention | StateSpace) and not getattr(mixer, "index", None)


def _plain(mlp: Mlp | Moe | None) -> bool:
    """Whether experts read the hidden state itself, not a narrower one (Nemotron 3)."""
    return not isinstance(mlp, Moe) or all(
        len(one.dims) < 3 or "embed" in dict(one.dims) for one in mlp.experts
    )


def model_problems(run: Run, build: int) -> Iterator[str]:
    """A model that has no file, no graph, or none at this build."""
    arch, family = run.arch, run.arch.family
    plain = all(_known(mixer) for layer, _, _ in arch.runs for mixer in layer.mixers)
    beside = any(layer.beside or not _plain(layer.mlp) for layer, _, _ in arch.runs)
    if gguf.problem(arch):
        yield f"model: {gguf.problem(arch)}"
    elif not plain or beside or family in UNREAD:
        yield f"model: llama.cpp's graph of {family} models is not modelled; use another engine"
    if build < LATENT and any(isinstance(one.mixer, LatentAttention) for one, _, _ in arch.runs):
        yield (f"inference.engine_version=b{build} has no latent cache, which is modelled alone; "
               f"use b{LATENT} or newer")  # fmt: skip
    if build < DELTA and any(isinstance(one.mixer, Recurrence) for one, _, _ in arch.runs):
        yield (f"inference.engine_version=b{build}: the graph of {family} models is modelled from "
               f"b{DELTA} on; use that or newer")  # fmt: skip
    if file_type(run) is None:
        yield (f"inference.quantization={run.options['quantization']!r} is not a GGUF file type; "
               "use 'none' or a type such as 'q4_k_m' or 'q8_0'")  # fmt: skip


def cache_problems(run: Run) -> Iterator[str]:
    """Types that the cache cannot have."""
    names = cache_types(run)
    if run.options["kv_cache_dtype"] not in ("auto", "fp16", "bf16", "int8", "int4"):
        yield (f"inference.kv_cache_dtype={run.options['kv_cache_dtype']!r} is not stored by "
               "llama.cpp; use 'auto', 'int8' (q8_0) or 'int4' (q4_0)")  # fmt: skip
        return
    if not known_types(names):
        yield (f"inference.cache_type_k={names[0]!r}, cache_type_v={names[1]!r} must be of "
               f"{', '.join(CACHE_TYPES)}")  # fmt: skip
        return
    for name in names:
        size = whole_blocks(run.arch, name.upper())
        if size:
            yield (f"inference: blocks of the cache type {name} do not divide a head of {size}; "
                   "use f16")  # fmt: skip
            return
    plan = planned(run)
    if quantized(plan.values) and not plan.flash:
        yield (f"inference.cache_type_v={names[1]!r} needs flash attention, which is off or has no "
               "kernel here; use f16, or the same type for keys and values")  # fmt: skip
