"""vLLM's KV-cache pool: its blocks, the tokens that the log reports, and what a sequence takes.

vllm 0.11.0 vllm/v1/core/kv_cache_utils.py; 0.20.1 counts tokens differently; V0: vllm 0.7.3
vllm/worker/worker.py and cache_engine.py.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator

from msgspec import Struct

from ...ledger.units import GIB
from ...run.run import Run
from ...run.weights.shards import ServerShard
from ...training.generation.kv_cache import LATENT, STATE
from .cache_groups import (
    BlockNeeds,
    CacheGroup,
    UnsupportedCacheError,
    block_bytes,
    block_needs,
    cache_groups,
    manages_hybrids,
    sequence_blocks,
)
from .cache_layers import GROWING, CacheSlot, base_block_size, cache_slots, layer_pages
from .parts import step_sequences
from .versions import v1, version


class PoolLayout(Struct, frozen=True, kw_only=True):
    """How a rank's pool is divided, independent of its size.

    - `groups`: cache groups of the whole model
    - `rank_groups`: the rank's layers of each group
    - `rank_slots`: the rank's layers, before windows become full attention or pages equal
    - `needs`: what the number of blocks of a sequence depends on
    - `block_bytes`: bytes of a block in all layers of the rank
    - `block_size`: tokens of a block of the attention layers
    """

    groups: tuple[CacheGroup, ...]
    rank_groups: tuple[CacheGroup, ...]
    rank_slots: tuple[CacheSlot, ...]
    needs: BlockNeeds
    block_bytes: int
    block_size: int


def pool_layout(run: Run, shard: ServerShard) -> PoolLayout:
    """The layout of a rank's pool.

    Raises `UnsupportedCacheError` if vLLM has no pages for the model.
    """
    all_slots, vllm_version = cache_slots(run, shard), version(run)
    end = max((slot.place for slot in all_slots), default=-1) + 1
    draft_places = range(len(run.arch.layers), end) if shard.head else ()
    places = {*shard.places, *draft_places}
    rank_slots = tuple(slot for slot in all_slots if slot.place in places)
    all_groups = cache_groups(run, all_slots if vllm_version >= (0, 11, 0) else rank_slots)
    rank_groups = tuple(group.on_worker(places) for group in all_groups)
    sizes = (group.page.block for group in all_groups if group.page.kind != STATE)
    return PoolLayout(
        groups=all_groups,
        rank_groups=rank_groups,
        rank_slots=rank_slots,
        needs=block_needs(run),
        block_bytes=block_bytes(rank_groups, vllm_version),
        block_size=min(sizes, default=base_block_size(run)),
    )


def token_bytes(layout: PoolLayout) -> int:
    """Bytes of one more token: its part of a block in every group of full attention."""
    ranks = layout.needs.context_ranks
    sizes = [group.page.block for group in layout.groups if group.page.kind in GROWING]
    return sum(-(-layout.block_bytes // (block * ranks)) for block in sizes)


STATES_FROM = (0, 20, 0)  # graphs of decode steps need one state per sequence


class BlockPool(Struct, frozen=True, kw_only=True):
    """The pool of one rank.

    - `blocks`: number of blocks; `block_size`: tokens of a block of the attention layers;
      `block_bytes`: bytes of a block in all layers of the rank
    - `tokens`: what the log calls "GPU KV cache size"; `concurrency`: "Maximum concurrency"
    - `token_bytes`: bytes of one more token of a long sequence
    - `sequence_bytes(n)`: bytes that a sequence of n tokens takes of the pool
    - `needs_bytes(n)`: bytes that vLLM requires to start with max_model_len n; `longest`: the
      largest n that it accepts; `spare_bytes`: a block that it never uses
    - `items`: name and bytes of what is allocated; smaller than the pool by less than a block, or
      by what another rank has no memory for
    - `states_bytes`: the minimum that graphs of decode steps need
    - `tensors`: how many hold it, one for each layer of the largest group; `groups`: their number
    - `problem`: why vLLM would not start, in one sentence; empty if it starts
    """

    blocks: int = 0
    block_size: int = 0
    block_bytes: int = 0
    tokens: int = 0
    concurrency: float = 0.0
    token_bytes: int = 0
    sequence_bytes: Callable[[int], int] = lambda _: 0
    needs_bytes: Callable[[int], int] = lambda _: 0
    longest: int = 0
    spare_bytes: int = 0
    states_bytes: int = 0
    tensors: int = 0
    groups: int = 0
    items: tuple[tuple[str, int], ...] = ()
    problem: str = ""


def block_pool(
    run: Run, shard: ServerShard, pool_bytes: int, num_blocks: int | None = None
) -> BlockPool:
    """The pool of one rank from `pool_bytes` of memory.

    `num_blocks`: an upper limit, if another pipeline stage has memory for fewer blocks.
    """
    try:
        layout = pool_layout(run, shard)
    except UnsupportedCacheError as error:
        name = run.options["engine_version"]
        return BlockPool(problem=f"vLLM {name} has no cache for {run.arch.family}: {error}")
    block, length = layout.block_bytes, int(run.options["max_seq_len"])
    if not block:  # no layer of this rank has a cache
        return BlockPool()
    count = max(0, pool_bytes) // block
    count = count if num_blocks is None else min(count, num_blocks)
    sequence = _sequence_bytes(layout)
    required = _needs_bytes(run, layout, sequence)
    spare = block if version(run) >= (0, 28, 0) else 0  # one block is never used
    usable = pool_bytes - spare
    longest = _longest(required, usable, length)
    concurrency = count * block / sequence(length)
    problem = _length_problem(run, required(length), usable, min(longest, run.arch.max_seq_len))
    return BlockPool(
        blocks=count,
        block_size=layout.block_size,
        block_bytes=block,
        tokens=_logged_tokens(run, layout, count, concurrency, length),
        concurrency=concurrency,
        token_bytes=token_bytes(layout),
        sequence_bytes=sequence,
        needs_bytes=required,
        longest=longest,
        spare_bytes=spare,
        items=((_pool_name(layout, count), count * block),),
        states_bytes=_state_blocks(run, layout) * block,
        tensors=max(len(group.slots) for group in layout.rank_groups),
        groups=len(layout.groups),
        problem=problem or _states_problem(run, layout, count),
    )


def _state_blocks(run: Run, layout: PoolLayout) -> int:
    """Blocks that decode graphs need: they are captured with one state per sequence.

    vllm 0.20.0 vllm/config/compilation.py resolve_cudagraph_mode_and_sizes.
    """
    has_states = any(group.page.kind == STATE for group in layout.groups)
    graphs = v1(run) and version(run) >= STATES_FROM and not run.options.get("enforce_eager")
    return int(run.options["max_num_seqs"]) if has_states and graphs else 0


def _states_problem(run: Run, layout: PoolLayout, count: int) -> str:
    needed = _state_blocks(run, layout)
    if needed <= count:
        return ""
    return (
        f"max_num_seqs={needed} needs as many states; the KV cache holds {count}. "
        f"Use --max-num-seqs {max(1, count)}."
    )


def _sequence_bytes(layout: PoolLayout) -> Callable[[int], int]:
    kinds = [group.page for group in layout.groups]
    return lambda context: (
        layout.block_bytes * sum(sequence_blocks(page, context, layout.needs) for page in kinds)
    )


def _needs_bytes(
    run: Run, layout: PoolLayout, sequence: Callable[[int], int]
) -> Callable[[int], int]:
    """Bytes that vLLM requires for a sequence, as a function of its tokens.

    Before 0.14.0 a sum over the layers, with windows; then, until 0.17.0, of the whole model even
    on one pipeline stage.
    """
    if not v1(run) or version(run) >= (0, 17, 0):
        return sequence
    if version(run) >= (0, 14, 0):
        model_block = block_bytes(layout.groups, version(run))
        return lambda context: sequence(context) // layout.block_bytes * model_block
    kinds = Counter(slot.page for slot in layout.rank_slots)
    return lambda context: sum(
        count * page.bytes * sequence_blocks(page, context, layout.needs)
        for page, count in kinds.items()
    )


def _longest(required: Callable[[int], int], available: int, length: int) -> int:
    """The largest max_model_len that vLLM accepts, by the binary search that vLLM uses."""
    return bisect_left(range(1, length + 1), True, key=lambda n: required(n) > available)


def _logged_tokens(
    run: Run, layout: PoolLayout, count: int, concurrency: float, length: int
) -> int:
    """Tokens in the log: before 0.20.1 blocks of one group, since then concurrency x length."""
    if version(run) >= (0, 20, 1) and v1(run):
        return int(concurrency * length)
    sizes = [group.page.block for group in layout.groups]
    block = min(sizes, default=layout.block_size)
    return count // max(1, len(sizes)) * block * layout.needs.context_ranks


def _pool_name(layout: PoolLayout, count: int) -> str:
    name = f"keys and values: {count:,} blocks of {layout.block_size:,} tokens"
    if len(layout.groups) < 2:
        return name
    layers = max(len(group.slots) for group in layout.rank_groups)
    return f"{name}, {len(layout.groups)} groups of {layers} layers"


def _length_problem(run: Run, required: int, available: int, longest: int) -> str:
    """Why a sequence of max_model_len cannot be served; a second cache changes nothing of that."""
    length = int(run.options["max_seq_len"])
    if available <= 0:
        return (
            "no memory is left for the KV cache. Raise --gpu-memory-utilization or use more GPUs."
        )
    if required <= available:
        return ""
    fix = f" Use --max-model-len {longest} or less." if longest else ""
    second = run.options.get("kv_offloading_size") or run.options.get("lmcache_size")
    if second:
        fix = f" A cache on the host does not change that: a running sequence is on the GPU.{fix}"
    return (
        f"one sequence of {length:,} tokens needs {required / GIB:.1f} GiB of KV cache; "
        f"{available / GIB:.1f} GiB available.{fix}"
    )


def states_outside_pool(run: Run, shard: ServerShard) -> int:
    """Bytes of Mamba states that V0 allocates outside the pool, one per running sequence.

    vllm 0.7.3 vllm/model_executor/models/mamba_cache.py; allocated in the profile run.
    """
    if v1(run):
        return 0
    layers = (run.arch.layers[place] for place in shard.places)
    pages = (page for layer in layers for page in layer_pages(run, run.arch, layer, None, shard))
    return step_sequences(run) * sum(page.state_bytes for page in pages if page.kind == STATE)


def notes(run: Run, shard: ServerShard) -> Iterator[str]:
    """Sentences for the user about the cache of this run."""
    if run.options.get("enable_prefix_caching") is not False:
        yield "prefix caching needs no extra memory: it reuses freed KV blocks"
    all_slots = cache_slots(run, shard)
    local = any(slot.page.window for slot in all_slots) and any(
        slot.page.kind in GROWING for slot in all_slots
    )
    if local and not manages_hybrids(run, all_slots):
        yield "this vLLM version caches all tokens of sliding-window layers, too"
    if any(slot.page.kind == LATENT for slot in all_slots) and shard.attention_tp > 1:
        replicated = "MLA's KV cache is replicated on every TP rank"
        yield f"{replicated}; decode_context_parallel_size shards it"
