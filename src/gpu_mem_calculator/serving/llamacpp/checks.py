"""What llama.cpp refuses, and what is not modelled, in sentences."""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import inf

from ...ledger.words import words
from ...models.arch.blocks import (
    Attention,
    LatentAttention,
    Mixer,
    Mlp,
    Moe,
    Recurrence,
    StateSpace,
)
from ...run.run import Run
from ...run.weights import gguf
from .cache import indivisible_head
from .graph_tensors import quantized
from .layout import CACHE_TYPES
from .ollama import is_counted
from .ollama_releases import family_of
from .options import (
    COMMON_TYPES,
    SLOT_KEYS,
    build_of,
    cache_types,
    device_number,
    file_type,
    known_types,
    ollama_release,
    server_layout,
)
from .row import ROW
from .versions import DELTA, NEWEST, NO_ROWS, OLDEST

# Families whose graphs were compared with llama.cpp's, tensor by tensor.
CHECKED = words("""
    baichuan bloom chatglm cohere cohere2 deepseek deepseek_v2 deepseek_v3 falcon gemma gemma2
    gemma3 gemma3_text glm glm4 glm4_moe gpt_neox gpt_oss gpt2 granite jamba kimi_k2 llama llama4
    mamba2 mistral mixtral mpt nemotron_h olmo2 olmoe phi phi3 phimoe plain qwen2 qwen2_moe qwen3
    qwen3_5 qwen3_5_moe qwen3_moe qwen3_next starcoder2
""")

MOST_GPUS = 16  # ggml/include/ggml-cuda.h GGML_CUDA_MAX_DEVICES


def problems(run: Run) -> Iterator[str]:
    """What llama.cpp refuses, and what is not modelled."""
    options = run.options
    name = options["engine_version"]
    build = build_of(options)
    if options["ollama_version"] is not None and ollama_release(options) is None:
        given = f"inference.ollama_version={options['ollama_version']!r}"
        yield f"{given} is no release, such as 0.12.6"
        return
    if build is None or build < OLDEST:
        refused = f"inference.engine_version={name!r} is not a build of llama.cpp that is modelled"
        yield f"{refused}; use b{OLDEST} to b{NEWEST}"
        return
    release = ollama_release(options)
    if release is not None and not is_counted(family_of(run.arch), release):
        why = "what Ollama counts for their graph is not modelled before 0.30"
        yield f"inference.ollama_version: {run.arch.family} models: {why}; use 0.30 or newer"
        return
    patterns = _pattern_problems(str(options["override_tensor"] or ""), int(run.mesh.pp))
    sentences = [*model_problems(run, build), *_split_problems(run), *patterns]
    yield from sentences
    if options["split_mode"] == "row":
        why = "CUDA has it no more" if build >= NO_ROWS else "it is not modelled"
        yield f"inference.split_mode='row': {why}; use 'layer'"
    counts = {options[key] for key in SLOT_KEYS} - {None}
    if len(counts) > 1:
        yield "inference.n_parallel, max_num_seqs and batch_size are the same here; give one"
    if not sentences:
        yield from cache_problems(run)


def _pattern_problems(text: str, gpus: int) -> Iterator[str]:
    """Patterns of -ot that are none, and devices that are not there."""
    for one in filter(None, text.split(",")):
        pattern, found, device = one.rpartition("=")
        try:
            re.compile(pattern)
        except re.error as error:
            yield f"inference.override_tensor: {pattern!r} is no pattern ({error}); correct it"
        if not found or device_number(device) >= gpus:
            places = f"PATTERN=CPU or =CUDA0 to CUDA{gpus - 1}"
            yield f"inference.override_tensor: {one!r} must be {places}"


def _split_problems(run: Run) -> Iterator[str]:
    """Wrong numbers of GPUs, shares of them, and choices of a single one."""
    options = run.options
    gpus, shares = int(run.mesh.pp), options["tensor_split"]
    if gpus > MOST_GPUS:
        yield f"hardware.num_gpus={gpus} is more than llama.cpp runs on; use at most {MOST_GPUS}"
    if shares is not None and (len(shares) != gpus or min(shares) < 0 or not 0 < sum(shares) < inf):
        each = f"a share of 0 or more for each of the {gpus} GPUs"
        yield f"inference.tensor_split={shares} must have {each}"
    if options["main_gpu"] and options["split_mode"] != "none":
        yield "inference.main_gpu acts with split_mode 'none' alone; leave it out"
    elif int(options["main_gpu"] or 0) >= gpus:
        yield f"inference.main_gpu={options['main_gpu']} must be less than {gpus}"


def _is_modelled(mixer: Mixer) -> bool:
    """Whether llama.cpp's graph of a mixer is modelled."""
    if isinstance(mixer, Recurrence):
        return mixer.kind == "gated_delta"
    if isinstance(mixer, Attention):
        return not (mixer.cross or mixer.borrowed or mixer.reuses or mixer.index)
    return isinstance(mixer, LatentAttention | StateSpace) and not mixer.index


def _reads_hidden(mlp: Mlp | Moe | None) -> bool:
    """Whether experts read the hidden state itself, not a projection of it (Nemotron 3)."""
    return not isinstance(mlp, Moe) or all(
        len(one.dims) < 3 or "embed" in dict(one.dims) for one in mlp.experts
    )


def model_problems(run: Run, build: int) -> Iterator[str]:
    """A model without a GGUF form, without a modelled graph, or without one at this build."""
    arch, family = run.arch, run.arch.family
    modelled = all(_is_modelled(mixer) for layer, _, _ in arch.runs for mixer in layer.mixers)
    extra = any(layer.beside or not _reads_hidden(layer.mlp) for layer, _, _ in arch.runs)
    if gguf.problem(arch):
        yield f"model: {gguf.problem(arch)}"
    elif not modelled or extra or family in ROW.no_code:
        yield f"model: llama.cpp's graph of {family} models is not modelled; use another engine"
    given = f"inference.engine_version=b{build}"
    if build < DELTA and any(isinstance(one.mixer, Recurrence) for one, _, _ in arch.runs):
        since = f"the graph of {family} models is modelled from b{DELTA} on"
        yield f"{given}: {since}; use that or newer"
    if file_type(run) is None:
        refused = f"inference.quantization={run.options['quantization']!r} is not a GGUF file type"
        yield f"{refused}; use 'none' or a type such as 'q4_k_m' or 'q8_0'"


def cache_problems(run: Run) -> Iterator[str]:
    """Types that the cache cannot be stored in."""
    names = cache_types(run)
    if run.options["kv_cache_dtype"] not in COMMON_TYPES:
        refused = f"inference.kv_cache_dtype={run.options['kv_cache_dtype']!r} is not stored by"
        yield f"{refused} llama.cpp; use 'auto', 'int8' (q8_0) or 'int4' (q4_0)"
        return
    if not known_types(names):
        given = f"inference.cache_type_k={names[0]!r}, cache_type_v={names[1]!r}"
        yield f"{given} must be of {', '.join(CACHE_TYPES)}"
        return
    for name in names:
        size = indivisible_head(run.arch, name.upper())
        if size:
            blocks = f"inference: blocks of the cache type {name}"
            yield f"{blocks} do not divide a head of {size}; use f16"
            return
    layout = server_layout(run)
    if quantized(layout.values) and not layout.flash:
        yield (
            f"inference.cache_type_v={names[1]!r} needs flash attention, which is off or has no "
            "kernel here; use f16, or the same type for keys and values"
        )
