"""vLLM: it profiles one pass, then gives the rest of its memory share to the KV cache.

    pool = gpu_memory_utilization x card - weights - activations - non-torch (- graphs from 0.20 on)

Each term has a file in this folder. Versions from 0.4 on are modelled; a version newer than the
newest one modelled is treated as that one.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from msgspec.structs import replace

from ...ledger.ledger import CPU
from ...ledger.num import power_of_two
from ...ledger.remember import remembered
from ...ledger.source import code
from ...ledger.units import GIB, MIB
from ...run.engine import Engine
from ...run.run import Run
from ...run.served import POOL, WEIGHTS, ServerItem, ServerMemory, left_open, server_options
from ...run.server_host import (
    ServerHost,
    checkpoint_bytes,
    loading_notes,
    loading_problem,
    quantizes,
)
from ...run.weights.rank_weights import run_format
from ...run.weights.recipes import RECIPES
from ...run.weights.shards import ServerShard
from . import cache, speculative, versions
from .activations import L2_MIB
from .budget import RankBudget, counts_graphs, needs_bytes, rank_budget, start_problem
from .cache import BlockPool, block_pool
from .checks import problems
from .command import command
from .defaults import apply_defaults
from .images import num_images
from .non_torch import KERNELS_GIB, uncounted_parts
from .row import ROW
from .sampler import PROCESSORS
from .shards import stage_layers
from .versions import Version, version
from .weights import backup_bytes, rank_weights

POOL_SOURCE = code("vllm 0.11.0 vllm/v1/core/kv_cache_utils.py get_kv_cache_configs")
PEAKS = {"feed-forward": "the MLP"}  # the field's word
SWAP_SOURCE = code(
    "vllm 0.7.3 vllm/worker/cache_engine.py _allocate_kv_cache: swap_space of each GPU, a pinned "
    "tensor for each layer"
)
OFFLOAD_SOURCE = code(
    "vllm 0.20.0 config/vllm.py: kv_offloading_size, shared by the ranks; v1/kv_offload/worker/"
    "cpu_gpu.py: pinned tensors; 0.27.0 v1/kv_offload/cpu/shared_offload_region.py: a file"
)
LMCACHE_SOURCE = code(
    "LMCache 000620e3 v1/storage_backend/local_cpu_backend.py initialize_allocator: "
    "max_local_cpu_size of each rank, pinned as it is"
)
JOINT_OFFLOAD: Version = (0, 14, 0)  # offloading_connector.py prefer_cross_layer_blocks
SHARED_OFFLOAD: Version = (0, 27, 0)
# 0.20.0 distributed/device_communicators/shm_broadcast.py, config/multimodal.py; 0.12.0 and 0.13.0
# model_executor/layers/quantization/fp8.py; device_allocator/cumem.py sleep.
CHUNKS, CHUNK_BYTES = 10, 16 * MIB  # of a queue in /dev/shm to the workers
IMAGE_CACHE = 4 * GIB  # mm_processor_cache_gb of the API server and of each engine
CACHES_IMAGES: Version = (0, 10, 1)
LAYER_BY_LAYER: Version = (0, 13, 0)  # a layer is quantized when it is loaded, before all of them
OPTIONS = server_options(
    """
    engine_generation gpu_memory_utilization max_num_batched_tokens max_num_seqs max_lora_rank
    speculative_method speculative_model num_speculative_tokens block_size enable_prefix_caching
    enable_chunked_prefill max_cudagraph_capture_size cudagraph_capture_sizes cudagraph_mode
    limit_mm_per_prompt kv_cache_memory_bytes swap_space use_flashinfer_sampler kv_offloading_size
    lmcache_size
    """,
    engine_version=versions.NEWEST,
    pipeline_parallel_size=1,
    data_parallel_size=1,
    expert_parallel_size=1,
    decode_context_parallel_size=1,
    enforce_eager=False,
    max_loras=1,
    language_model_only=False,
    mm_encoder_tp_mode="weights",
    cpu_offload_gb=0,
    enable_sleep_mode=False,
)


def serve(run: Run) -> ServerMemory:
    """The memory of one rank of pipeline stage `run.stage`.

    All stages use the block count of the stage with the fewest blocks.
    """
    resolved, stage = apply_defaults(run), int(run.stage)
    budgets, fewest_blocks = _stages(replace(resolved, stage=0))
    rank = budgets[stage]
    pool = block_pool(resolved, rank.shard, rank.pool_bytes, num_blocks=fewest_blocks)
    if not pool.block_bytes:  # a model that keeps nothing, or one that vLLM has no pages for
        rank = replace(rank, pool_bytes=0)
    length = int(resolved.options["max_seq_len"])
    outside = uncounted_parts(resolved, rank.shard)
    host = server_host(resolved, rank.shard, loaded_bytes(rank))
    beside = sum(size for _, size, _ in outside)
    return ServerMemory(
        items=(*rank.items, *_pool_item(rank, pool), *host_items(resolved, pool)),
        tokens=pool.tokens,
        token_bytes=pool.token_bytes,
        max_seq_len=length,
        most_sequences=int(resolved.options["max_num_seqs"]),
        sequence_bytes=pool.sequence_bytes,
        needs_bytes=needs_bytes(resolved, rank, pool),
        outside=outside,
        problem=start_problem(resolved, rank, pool) or loading_problem(resolved, host, beside),
        host=host,
        command=command(run, OPTIONS),
        notes=(*_notes(run, resolved, rank), *loading_notes(resolved, host, beside)),
        chosen=left_open(run.options, **resolved.options),
    )


def loaded_bytes(rank: RankBudget) -> int:
    """Bytes of weights on the GPU when they are loaded."""
    return sum(one.bytes for one in rank.items if one.figure == WEIGHTS and one.place != CPU)


def host_items(run: Run, pool: BlockPool) -> Iterator[ServerItem]:
    """Caches in host RAM, of each rank: a tensor for each layer, and since 0.14 one for all where
    they are alike. Torch pins a power of two for each; since 0.27 they are a file in /dev/shm.
    """
    swap, size = run.options["swap_space"], run.options["kv_offloading_size"]
    if swap and pool.tensors:
        each = power_of_two(int(swap * GIB) // pool.tensors)
        text = f"{pool.tensors} layers × {each:,} bytes, of each rounded up to a power of two"
        taken = pool.tensors * each
        yield ServerItem(POOL, "swap space", taken, SWAP_SOURCE, text, place=CPU)
    if size and pool.tensors:
        ranks = int(run.mesh.tp * run.mesh.pp)
        taken, text = ceil(size * GIB / ranks), f"ceil({size:g} GiB × {GIB:,} / {ranks} ranks)"
        if version(run) < SHARED_OFFLOAD:
            tensors = 1 if version(run) >= JOINT_OFFLOAD and pool.groups == 1 else pool.tensors
            each = power_of_two(taken // tensors)
            text = f"{tensors} × {each:,} bytes, of each rounded up to a power of two"
            taken = tensors * each
        yield ServerItem(POOL, "offloaded cache", taken, OFFLOAD_SOURCE, text, place=CPU)
    size = run.options["lmcache_size"]
    if size:
        text = f"floor({size:g} GiB × {GIB:,})"
        yield ServerItem(POOL, "LMCache", int(size * GIB), LMCACHE_SOURCE, text, place=CPU)


def server_host(run: Run, shard: ServerShard, weights: int) -> ServerHost:
    """What one rank and its node take; `weights`: bytes on its GPU when they are loaded."""
    options, ranks = run.options, int(run.mesh.tp * run.mesh.pp)
    whole = 0
    if quantizes(run) and version(run) < LAYER_BY_LAYER:
        plain = replace(run, options={**options, "quantization": "none"})
        whole = sum(size for _, size in rank_weights(plain, shard))
    sees = bool(run.arch.tower) and not options["language_model_only"]
    cached = version(run) >= CACHES_IMAGES and sees
    shared = CHUNKS * CHUNK_BYTES if ranks > 1 else 0
    return ServerHost(
        file_bytes=checkpoint_bytes(run, [weights] * ranks),
        first_bytes=shared,
        shared_bytes=shared,
        filled_bytes=IMAGE_CACHE * (1 + int(run.mesh.dp)) if cached else 0,
        whole_bytes=whole,
        asleep_bytes=backup_bytes(run, shard, weights) if options["enable_sleep_mode"] else None,
    )


@remembered(4)
def _stages(run: Run) -> tuple[tuple[RankBudget, ...], int]:
    """The budget of a rank of each pipeline stage, and the fewest blocks that one has room for."""
    budgets = tuple(rank_budget(run, number) for number in range(int(run.mesh.pp)))
    pools = (block_pool(run, budget.shard, budget.pool_bytes) for budget in budgets)
    return budgets, min((one.blocks for one in pools if one.block_bytes), default=0)


def _pool_item(rank: RankBudget, pool: BlockPool) -> Iterator[ServerItem]:
    """The pool as vLLM logs it, in bytes; less than one block of it is unused."""
    allocated = sum(size for _, size in pool.items)
    pool_bytes = max(0, rank.pool_bytes)
    parts = (*pool.items, ("not used", pool_bytes - allocated))
    name = pool.items[0][0] if pool.items else "keys and values"
    formula = rank.pool_formula if pool.block_bytes else ""
    yield ServerItem(POOL, name, pool_bytes, POOL_SOURCE, formula, parts)


def _notes(given: Run, run: Run, rank: RankBudget) -> Iterator[str]:
    """Sentences for the user about this estimate."""
    if given.options["swap_space"] and versions.v1(run):
        yield "swap_space is of vLLM's V0 engine; V1 has no blocks to swap to, and takes nothing"
    options, vllm_version = run.options, versions.version(run)
    newest = versions.parse_version(versions.NEWEST) or vllm_version
    if vllm_version > newest:
        yield f"vLLM {options['engine_version']} is modelled as {versions.NEWEST}"
    tokens, seqs = options["max_num_batched_tokens"], options["max_num_seqs"]
    yield (
        f"vLLM's profiling pass peaks in {PEAKS.get(rank.peak_instant, rank.peak_instant)} "
        f"(max_num_batched_tokens={tokens}, max_num_seqs={seqs})"
    )
    if versions.FIRST_V1 <= vllm_version < (0, 11, 1) and options["use_flashinfer_sampler"] is None:
        yield (
            "with FlashInfer installed, as in the Docker image, sampling needs about a third of "
            "this memory; set use_flashinfer_sampler=true"
        )
    chip = run.compute_capability
    if any(chip not in table for table in (KERNELS_GIB, L2_MIB, PROCESSORS)):
        yield f"vLLM's kernels and caches on compute capability {chip} are assumed to be an H100's"
    if run.arch.tower and not num_images(run):
        yield "profiling of the vision tower is not modelled; images need more memory"
    if not options["enforce_eager"] and not counts_graphs(run):
        yield "this vLLM version allocates CUDA graphs beyond gpu_memory_utilization"
    if run_format(run).name == "nf4" and vllm_version >= versions.PLUGIN_FROM:
        yield "vLLM 0.28.0 and newer need the package vllm-bnb-plugin for NF4"
    yield from ROW.borrowed_notes(run.arch.family)
    yield from cache.notes(run, rank.shard)
    yield from speculative.notes(run)


ENGINE = Engine(
    name="vllm",
    title=ROW.title,
    options=OPTIONS,
    values={"quantization": RECIPES, "speculative_method": speculative.METHODS},
    generations=versions.LAST_VERSIONS,
    axes=frozenset({"tp", "pp", "ep"}),
    transformers=False,
    problems=problems,
    ledger=lambda run: serve(run).ledger,
    serve=serve,
    stage_layers=stage_layers,
)
