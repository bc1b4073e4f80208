"""TensorRT-LLM: the KV cache gets a share of the memory that the model leaves free.

Names in a run file and in TensorRT-LLM: `engine_generation` is its backend, `pytorch` (the default
since 1.0) or `tensorrt` (engines that `trtllm-build` makes). `gpu_memory_utilization` is
kv_cache_config.free_gpu_memory_fraction, `max_num_seqs` max_batch_size, `max_num_batched_tokens`
max_num_tokens, `block_size` tokens_per_block, `max_total_tokens` kv_cache_config.max_tokens,
`enforce_eager` turns CUDA graphs off. Files are those of TensorRT-LLM 1.2.1.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...ledger.frameworks import TENSORRT_LLM
from ...ledger.source import code
from ...ledger.units import GIB
from ...run.cuda.process import process_items
from ...run.engine import Engine
from ...run.releases import newer_version_notes
from ...run.run import Run
from ...run.served import COMMON_OPTIONS, POOL, ServerItem, ServerMemory
from ...run.weights.shards import ServerShard
from . import cache, tensorrt_backend, torch_backend, weights
from .checks import FORMATS, SPECULATION, problems
from .command import command, settings_note
from .defaults import beams, max_batch_size, max_seq_len
from .row import ROW
from .shards import rank_shard, stage_layers
from .versions import ENGINES, NEWEST, TORCH, backend

__all__ = ["ENGINE", "FORMATS", "SPECULATION", "serve"]

POOL_CODE = code(
    "TensorRT-LLM 1.2.1 _torch/pyexecutor/_util.py _cal_max_memory, resource_manager.py "
    "calculate_max_num_blocks: a share of what is free"
)
FREE_CODE = code(
    "TensorRT-LLM 1.2.1 cpp/tensorrt_llm/batch_manager/kvCacheManager.cpp calculateFreeMemBytes: a "
    "share of what is free behind the engine"
)


def items_without_pool(run: Run, shard: ServerShard) -> tuple[ServerItem, ...]:
    """All items of one rank but the KV cache."""
    items = (*weights.rank_items(run, shard), *process_items(run, as_measured=True))
    if backend(run) == ENGINES:
        context = tensorrt_backend.context_items(run, shard)
        return (*items, *context, *tensorrt_backend.runtime_items(run, shard))
    return (
        *items,
        *torch_backend.buffer_items(run, shard),
        *torch_backend.activation_items(run, shard),
        *torch_backend.graph_items(run, shard),
        *torch_backend.outside_items(run),
        *torch_backend.state_items(run, shard),
    )


def serve(run: Run) -> ServerMemory:
    """The memory of one rank after start-up."""
    shard = rank_shard(run)
    items = items_without_pool(run, shard)
    used_bytes = sum(item.bytes for item in items)
    share = float(run.options["gpu_memory_utilization"])
    free = run.free_bytes - used_bytes
    pool = cache.pool(run, shard, int(max(0, free) * share))
    source = POOL_CODE if backend(run) == TORCH else FREE_CODE
    formula = pool.formula
    pool_items = [ServerItem(POOL, "keys and values", pool.bytes, source, formula)]
    if pool.cross_bytes:
        name = "keys and values of the encoder"
        formula = f"{pool.cross_bytes:,} of cross_kv_cache_fraction, in whole blocks"
        pool_items.append(ServerItem(POOL, name, pool.cross_bytes, FREE_CODE, formula))
    pool_bytes = sum(item.bytes for item in (*items, *pool_items) if item.figure == POOL)
    longest = max_seq_len(run)
    longest_bytes = cache.sequence_needs(run, shard, longest)
    return ServerMemory(
        items=(*items, *pool_items),
        tokens=pool.tokens,
        token_bytes=pool.token_bytes,
        max_seq_len=longest,
        most_sequences=max_batch_size(run),
        sequence_bytes=lambda context: pool.sequence_bytes(context, pool_bytes),
        needs_bytes=used_bytes - int(-longest_bytes // share),
        problem=_problem(run, free, pool),
        command=command(run),
        notes=tuple(_notes(run, pool)),
    )


def _problem(run: Run, free: int, pool: cache.WindowPools) -> str:
    """Why it would not start; empty if it starts. Blocks for a part of max_seq_len are enough."""
    if free <= 0:
        return (
            f"weights + buffers + profiling need {(run.free_bytes - free) / GIB:,.1f} GiB; "
            f"{run.free_bytes / GIB:,.1f} GiB available. Use more GPUs, a smaller "
            "--max-num-batched-tokens or a smaller quantization."
        )
    if not pool.blocks or min(pool.blocks) < beams(run):
        fix = "Use more GPUs or a smaller --max-num-batched-tokens."
        return f"no memory is left for the KV cache. {fix}"
    return ""


def _notes(run: Run, pool: cache.WindowPools) -> Iterator[str]:
    yield from newer_version_notes(run, "TensorRT-LLM", NEWEST)
    tokens = pool.tokens // beams(run)
    if 0 < tokens < min(max_seq_len(run), pool.windows[-1].tokens if pool.windows else 0):
        yield f"the KV cache holds {tokens:,} tokens; TensorRT-LLM lowers max_seq_len to that"
    if any(run.arch.windows) and not run.options.get("max_attention_window"):
        yield (
            "every layer caches the whole sequence unless kv_cache_config.max_attention_window "
            "lists the model's sliding windows"
        )
    yield from settings_note(run)


OPTIONS = COMMON_OPTIONS | {
    "engine_version": TENSORRT_LLM.version,
    "engine_generation": None,
    "pipeline_parallel_size": 1,
    "expert_parallel_size": 1,
    "gpu_memory_utilization": 0.9,
    "max_num_batched_tokens": None,
    "max_num_seqs": None,
    "max_total_tokens": None,
    "enforce_eager": False,
    "block_size": None,
    "max_beam_width": 1,
    "max_attention_window": None,
    "cross_kv_cache_fraction": None,
    "cuda_graph_max_bs": None,
    "max_loras": None,
    "max_lora_rank": None,
    "speculative_method": None,
    "speculative_model": None,
    "num_speculative_tokens": None,
}
ENGINE = Engine(
    name="tensorrt_llm",
    title=ROW.title,
    options=OPTIONS,
    axes=frozenset({"tp", "pp", "ep"}),
    problems=problems,
    ledger=lambda run: serve(run).ledger,
    serve=serve,
    stage_layers=stage_layers,
    transformers=False,
)
