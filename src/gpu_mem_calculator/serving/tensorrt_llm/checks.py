"""What TensorRT-LLM refuses to start with, and what is not modelled."""

from __future__ import annotations

from collections.abc import Iterator

from ...models.arch.blocks import Recurrence, StateSpace
from ...run.releases import version_problems
from ...run.run import Run
from ...run.weights.rank_weights import adapter_problems, format_problems
from ...training.generation.kv_cache import has_cache
from .. import other_server
from . import cache
from .defaults import max_batch_size, max_num_tokens
from .row import IN_ENGINES, ROW
from .versions import ENGINES, OLDEST, TORCH, backend

STATES = ("nemotron_h", "qwen3_next")  # hybrid models that MambaHybridCacheManager supports
FORMATS = {  # quantization/mode.py QuantAlgo, with linear layers in each backend
    TORCH: ("none", "fp8", "int8", "awq", "mxfp4", "nvfp4"),
    ENGINES: ("none", "fp8", "int8", "int4", "awq", "gptq_int4", "nvfp4"),
}
SPECULATION = ("ngram", "draft_target", "eagle3")


def problems(run: Run) -> Iterator[str]:
    """One sentence for each choice that TensorRT-LLM refuses or that is not modelled."""
    options, torch = run.options, backend(run) == TORCH
    yield from version_problems(run, "TensorRT-LLM", OLDEST)
    if backend(run) not in (TORCH, ENGINES):
        given = f"inference.engine_generation={options['engine_generation']!r}"
        yield f"{given} is not a backend of TensorRT-LLM; use 'pytorch' or 'tensorrt'"
    seqs, tokens = max_batch_size(run), max_num_tokens(run)
    if tokens < seqs and torch:
        most = f"must not be more than max_num_batched_tokens={tokens}"
        yield f"inference.max_num_seqs={seqs} {most}; raise the latter"
    cache_type = cache.cache_dtype(run)
    unquantized = ("fp32",) if run.precision == "fp32" else ("bf16", "fp16")
    if cache_type not in (*unquantized, "fp8", "nvfp4" if torch else "int8"):
        refused = f"inference.kv_cache_dtype={cache_type!r} is not stored by"
        yield f"{refused} TensorRT-LLM's {backend(run)} backend; use 'auto' or 'fp8'"
    yield from adapter_problems(run)
    if options["enforce_eager"] and options["cuda_graph_max_bs"]:
        yield "inference.cuda_graph_max_bs acts on CUDA graphs; leave it or enforce_eager out"
    yield from _model_problems(run, torch=torch)
    yield from _speculation_problems(run, torch=torch)
    yield from _mesh_problems(run)


def _model_problems(run: Run, *, torch: bool) -> Iterator[str]:
    mixers = [mixer for layer, _, _ in run.arch.runs for mixer in layer.mixers]
    family = run.arch.family
    fix = f"use {other_server(family)}"
    stateful = any(isinstance(mixer, StateSpace | Recurrence) for mixer in mixers)
    if torch and family in ROW.no_code:
        engines = "set engine_generation='tensorrt', or " if family in IN_ENGINES else ""
        yield f"model: TensorRT-LLM's pytorch backend has no {family} model; {engines}{fix}"
    elif not has_cache(run.arch):
        yield f"model: {family} keeps no cache, and TensorRT-LLM is modelled with one; {fix}"
    elif stateful and not (torch and family in STATES):
        yield f"model: TensorRT-LLM's {backend(run)} backend does not serve {family}; {fix}"
    has_cross_attention = any(getattr(mixer, "cross", False) for mixer in mixers)
    of_both = "encoder-decoder models"
    if torch and has_cross_attention:
        yield f"model: {of_both} need engines; set inference.engine_generation='tensorrt'"
    if run.options["cross_kv_cache_fraction"] and not has_cross_attention:
        yield (
            f"inference.cross_kv_cache_fraction is for {of_both}, not for {family}; leave it out"
        )
    quantization, formats = str(run.options["quantization"]), FORMATS[TORCH if torch else ENGINES]
    if quantization in formats:
        yield from format_problems(run)
    else:
        where = f"TensorRT-LLM's {backend(run)} backend; use one of {', '.join(formats)}"
        yield f"inference.quantization={quantization!r} is not served by {where}"


def _speculation_problems(run: Run, *, torch: bool) -> Iterator[str]:
    method, drafts = run.options["speculative_method"], run.options["num_speculative_tokens"]
    key, tokens = "inference.speculative_method", "inference.num_speculative_tokens"
    given = f"{key}={method!r}"
    if method is None:
        if drafts or run.draft is not None:
            fix = "set it to 'ngram', or leave them out"
            yield f"{tokens} and speculative_model need {key}; {fix}"
        return
    if method not in SPECULATION or not torch:
        where = f"TensorRT-LLM's {backend(run)} backend"
        fix = f"use one of {', '.join(SPECULATION)} with 'pytorch'"
        yield f"{given} is not modelled for {where}; {fix}"
    if method in SPECULATION[1:] and run.draft is None:
        yield f"{given} needs inference.speculative_model"
    if method == SPECULATION[0] and run.draft is not None:
        yield "inference.speculative_model is not for 'ngram', which has no model; leave it out"
    if not drafts:
        yield f"{given} needs {tokens}, its max_draft_len; set it to 3"


def _mesh_problems(run: Run) -> Iterator[str]:
    tp, pp, ep = int(run.mesh.tp), int(run.mesh.pp), int(run.mesh.ep)
    if tp % ep:
        yield f"inference.expert_parallel_size={ep} must divide tensor_parallel_size={tp}"
    if pp > 1 and run.draft is not None:
        yield "inference.speculative_model is not modelled with pipeline_parallel_size above 1"
