"""What vLLM refuses to start with, and what is not modelled."""

from __future__ import annotations

from collections.abc import Iterator

from ...ledger.frameworks import numbers
from ...models.arch.blocks import Attention, LatentAttention
from ...models.arch.variants import has_attention
from ...run.releases import version_text
from ...run.run import Run
from ...run.weights.rank_weights import format_problems
from .. import other_server
from .defaults import apply_defaults
from .row import ROW
from .shards import first_moe
from .speculative import METHODS, method, num_mtp_layers, tokens_ahead
from .versions import EARLY_V1, FIRST, LAST_V0, NEWEST, parse_version, v1, version

# Cache types with scales, by first version (vllm/v1/kv_cache_interface.py KVQuantMode).
SCALED_CACHES = {"int8": (0, 20, 0), "int4": (0, 25, 0), "nvfp4": (0, 20, 0)}
ADAPTER_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # values of max_lora_rank; 1 since 0.12.0


def problems(run: Run) -> Iterator[str]:
    """One sentence for each choice that vLLM refuses or that is not modelled."""
    yield from version_problems(run)
    yield from model_problems(run)
    yield from shard_problems(run)
    yield from cache_problems(run)
    yield from adapter_problems(run)
    yield from speculative_problems(run)
    yield from _option_problems(run)
    yield from format_problems(run)


def _option_problems(run: Run) -> Iterator[str]:
    options, is_v1 = run.options, v1(run)
    if is_v1 and options["swap_space"]:
        yield "inference.swap_space is of vLLM's V0 engine; leave it out"
    if options["kv_cache_memory_bytes"] is not None and version(run) < (0, 10, 2):
        yield "inference.kv_cache_memory_bytes is in vLLM from 0.10.2 on; leave it out"
    if options["decode_context_parallel_size"] > 1 and version(run) < (0, 10, 2):
        yield "inference.decode_context_parallel_size is in vLLM from 0.10.2 on; leave it out"
    resolved = apply_defaults(run).options
    length, tokens = int(resolved["max_seq_len"]), int(resolved["max_num_batched_tokens"])
    if tokens < length and not resolved["enable_chunked_prefill"]:
        yield (
            f"inference.max_num_batched_tokens={tokens} is less than max_seq_len={length}, and "
            f"chunked prefill is off; set it to {length}"
        )
    if tokens < int(resolved["max_num_seqs"]):
        yield (
            f"inference.max_num_batched_tokens={tokens} is less than max_num_seqs="
            f"{resolved['max_num_seqs']}; set max_num_seqs to {tokens}"
        )


def version_problems(run: Run) -> Iterator[str]:
    """Versions that are not modelled, and engine generations that a version does not have."""
    text, generation = run.options["engine_version"], run.options.get("engine_generation")
    parsed = parse_version(str(text))
    if parsed is None:
        yield f"inference.engine_version={text!r} is not a version; use one such as '{NEWEST}'"
        return
    if parsed < FIRST:
        yield f"inference.engine_version={text!r} is not modelled; use 0.4.0 or newer"
    named = generation if generation is None else str(generation).lower()
    if named not in (None, "v0", "v1"):
        yield f"inference.engine_generation={generation!r} must be 'v0' or 'v1'"
    elif named == "v0" and parsed > LAST_V0:
        yield f"vLLM {text} has no V0 engine; leave inference.engine_generation out"
    elif named == "v1" and parsed < EARLY_V1:
        yield f"vLLM {text} has no V1 engine; leave inference.engine_generation out"


def model_problems(run: Run) -> Iterator[str]:
    """A model that vLLM does not have, or has no more."""
    number, family = version(run), run.arch.family
    last = ROW.no_code.get(family)
    if last is not None and any(number) and not (last and number <= numbers(last)):
        had = f"{last} was the last that had one: set engine_version={last!r}"
        fix = had if last else f"use {other_server(family)}"
        yield f"model: vLLM {version_text(number)} has no {family} model; {fix}"


def shard_problems(run: Run) -> Iterator[str]:
    """Expert-parallel sizes that vLLM refuses."""
    ep, ranks, moe = int(run.mesh.ep), int(run.mesh.tp) * int(run.mesh.dp), first_moe(run)
    if ep > 1 and moe is None:
        yield (
            f"inference.expert_parallel_size={ep}, but {run.arch.family} has no experts; "
            "leave it out"
        )
    elif ep > 1 and ep != ranks:
        yield (
            f"inference.expert_parallel_size={ep} must be tensor_parallel_size x "
            f"data_parallel_size={ranks}; set it to {ranks}"
        )
    elif ep > 1 and moe is not None and ranks > moe.num_experts:
        yield (
            f"inference.expert_parallel_size={ep} is more than {moe.num_experts} experts; use "
            f"{moe.num_experts}"
        )


def cache_problems(run: Run) -> Iterator[str]:
    """Cache options that vLLM refuses."""
    dtype, vllm_version = str(run.options["kv_cache_dtype"]), version(run)
    mixers = [mixer for layer, _, _ in run.arch.runs for mixer in layer.mixers]
    latent = any(isinstance(mixer, LatentAttention) for mixer in mixers)
    since = SCALED_CACHES.get(dtype)
    if since is not None and (vllm_version < since or latent or not v1(run)):
        where = "latent attention" if latent else f"vLLM {run.options['engine_version']}"
        yield f"inference.kv_cache_dtype={dtype!r} is not in {where}; use 'fp8'"
    elif dtype == "nvfp4" and not run.compute_capability.startswith("10."):
        yield (
            "inference.kv_cache_dtype='nvfp4' has kernels for compute capability 10.0 alone, "
            f"not for {run.compute_capability}; use 'fp8'"
        )
    ranks, tp = int(run.options.get("decode_context_parallel_size") or 1), int(run.mesh.tp)
    if ranks > 1 and tp % ranks:
        yield (
            f"inference.decode_context_parallel_size={ranks} must divide "
            f"tensor_parallel_size={tp}; use {tp}"
        )
    if ranks > 1 and any(run.arch.windows):
        yield (
            "inference.decode_context_parallel_size is not for layers with a window; leave it out"
        )
    heads = max((m.kv_heads for m in mixers if isinstance(m, Attention)), default=0)
    if ranks > 1 and heads and ranks > tp // heads:
        yield (
            f"inference.decode_context_parallel_size={ranks} is more than the "
            f"{max(1, tp // heads)} replicas of the KV heads (tensor_parallel_size={tp}, "
            f"{heads} KV heads); use at most {max(1, tp // heads)}"
        )


def adapter_problems(run: Run) -> Iterator[str]:
    """Adapter ranks that vLLM refuses."""
    rank = run.options.get("max_lora_rank")
    allowed = ADAPTER_RANKS if version(run) < (0, 12, 0) else (1, *ADAPTER_RANKS)
    if rank is not None and rank not in allowed:
        nearest = min((size for size in allowed if size >= rank), default=max(allowed))
        yield (
            f"inference.max_lora_rank={rank} must be one of {', '.join(map(str, allowed))}; "
            f"try {nearest}"
        )
    if rank is None and (run.options.get("max_loras") or 1) > 1:
        yield "inference.max_loras needs inference.max_lora_rank; set it to 16 (vLLM's default)"


def speculative_problems(run: Run) -> Iterator[str]:
    """Speculative options that vLLM refuses, or that are not modelled."""
    name, vllm_version = method(run), version(run)
    if not name:
        if run.options.get("num_speculative_tokens"):
            yield (
                "inference.num_speculative_tokens needs inference.speculative_method; set it "
                "to 'ngram', or leave both out"
            )
        return
    key = "inference.speculative_method"
    if name not in METHODS:
        yield f"{key}={name!r} is not modelled; use one of {', '.join(METHODS)}"
    elif name == "mtp" and not num_mtp_layers(run.arch):
        yield f"{key}='mtp', but {run.arch.family} predicts one token at a time; use 'ngram'"
    elif name == "mtp" and not has_attention(run.arch):
        yield f"{key}='mtp': the model has no layer with attention, as its draft has"
    elif name in ("eagle", "eagle3", "draft_model") and run.draft is None:
        yield f"{key}={name!r} needs inference.speculative_model"
    elif name == "draft_model" and v1(run) and vllm_version < (0, 15, 0):
        yield (
            f"{key}='draft_model' is not in vLLM's V1 engine before 0.15.0; use 'eagle3', or "
            "engine_version 0.15.0"
        )
    if name in METHODS and not tokens_ahead(run):
        yield f"{key}={name!r} needs inference.num_speculative_tokens"
