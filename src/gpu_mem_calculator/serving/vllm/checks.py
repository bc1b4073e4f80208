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
    for problems_of in (
        *(version_problems, model_problems, shard_problems, cache_problems, adapter_problems),
        *(speculative_problems, _option_problems, format_problems),
    ):
        yield from problems_of(run)


def _option_problems(run: Run) -> Iterator[str]:
    options = run.options
    for key, least in (("kv_cache_memory_bytes", 0), ("decode_context_parallel_size", 1)):
        if (options[key] or 0) > least and version(run) < (0, 10, 2):
            yield f"inference.{key} is in vLLM from 0.10.2 on; leave it out"
    resolved = apply_defaults(run).options
    length, tokens = int(resolved["max_seq_len"]), int(resolved["max_num_batched_tokens"])
    less, seqs = f"inference.max_num_batched_tokens={tokens} is less than", resolved["max_num_seqs"]
    if tokens < length and not resolved["enable_chunked_prefill"]:
        off = "chunked prefill is off"
        yield f"{less} max_seq_len={length}, and {off}; set it to {length}"
    if tokens < int(seqs):
        yield f"{less} max_num_seqs={seqs}; set max_num_seqs to {tokens}"


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
    given = f"inference.expert_parallel_size={ep}"
    if ep == 1:
        return
    if moe is None:
        yield f"{given}, but {run.arch.family} has no experts; leave it out"
    elif ep != ranks:
        product = f"tensor_parallel_size x data_parallel_size={ranks}"
        yield f"{given} must be {product}; set it to {ranks}"
    elif ranks > moe.num_experts:
        yield f"{given} is more than {moe.num_experts} experts; use {moe.num_experts}"


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
    key = "inference.decode_context_parallel_size"
    if ranks == 1:
        return
    if tp % ranks:
        yield f"{key}={ranks} must divide tensor_parallel_size={tp}; use {tp}"
    if any(run.arch.windows):
        yield f"{key} is not for layers with a window; leave it out"
    heads = max((m.kv_heads for m in mixers if isinstance(m, Attention)), default=0)
    if heads and ranks > tp // heads:
        most = max(1, tp // heads)
        replicas = f"{most} replicas of the KV heads (tensor_parallel_size={tp}, {heads} KV heads)"
        yield f"{key}={ranks} is more than the {replicas}; use at most {most}"


def adapter_problems(run: Run) -> Iterator[str]:
    """Adapter ranks that vLLM refuses."""
    rank = run.options.get("max_lora_rank")
    allowed = ADAPTER_RANKS if version(run) < (0, 12, 0) else (1, *ADAPTER_RANKS)
    if rank is not None and rank not in allowed:
        nearest = min((size for size in allowed if size >= rank), default=max(allowed))
        ranks = ", ".join(map(str, allowed))
        yield f"inference.max_lora_rank={rank} must be one of {ranks}; try {nearest}"
    if rank is None and (run.options.get("max_loras") or 1) > 1:
        yield "inference.max_loras needs inference.max_lora_rank; set it to 16 (vLLM's default)"


def speculative_problems(run: Run) -> Iterator[str]:
    """Speculative options that vLLM refuses, or that are not modelled."""
    name, vllm_version = method(run), version(run)
    key = "inference.speculative_method"
    if not name:
        if run.options.get("num_speculative_tokens"):
            fix = "set it to 'ngram', or leave both out"
            yield f"inference.num_speculative_tokens needs {key}; {fix}"
        return
    if name not in METHODS:
        yield f"{key}={name!r} is not modelled; use one of {', '.join(METHODS)}"
    elif name == "mtp" and not num_mtp_layers(run.arch):
        yield f"{key}='mtp', but {run.arch.family} predicts one token at a time; use 'ngram'"
    elif name == "mtp" and not has_attention(run.arch):
        yield f"{key}='mtp': the model has no layer with attention, as its draft has"
    elif name in ("eagle", "eagle3", "draft_model") and run.draft is None:
        yield f"{key}={name!r} needs inference.speculative_model"
    elif name == "draft_model" and v1(run) and vllm_version < (0, 15, 0):
        early = "is not in vLLM's V1 engine before 0.15.0"
        yield f"{key}='draft_model' {early}; use 'eagle3', or engine_version 0.15.0"
    if name in METHODS and not tokens_ahead(run):
        yield f"{key}={name!r} needs inference.num_speculative_tokens"
