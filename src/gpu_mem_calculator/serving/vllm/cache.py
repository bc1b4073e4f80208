"""vLLM's pool of the cache: its blocks, the tokens it says it holds, and what a sequence takes.

vllm 0.11.0 vllm/v1/core/kv_cache_utils.py; 0.20.1 counts tokens anew; V0: vllm 0.7.3
vllm/worker/worker.py and cache_engine.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec import Struct

from ...generation.kv_cache import LATENT, STATE
from ...ledger.units import GIB
from ...model.blocks import Attention, LatentAttention
from ...run.run import Run
from ...weights.shards import ServerShard
from .cache_groups import (
    BlockNeeds,
    CacheGroup,
    UnsupportedCacheError,
    block_bytes,
    blocks,
    groups,
    manages_hybrids,
    needs,
)
from .cache_layers import GROWING, CacheSlot, LayerPage, first_block, pages, slots
from .versions import v1, version

# Caches with scales of their own, and since when (vllm/v1/kv_cache_interface.py KVQuantMode).
SCALED = {"int8": (0, 20, 0), "int4": (0, 25, 0), "nvfp4": (0, 20, 0)}
STATES_FROM = (0, 20, 0)  # graphs of decode steps need a state for every sequence
PREFIX_NOTE = "prefix caching takes no more memory: blocks that are no longer used are kept"


class BlockPool(Struct, frozen=True, kw_only=True):
    """The pool of one rank.

    - `blocks`, `block_size` (tokens of a block of the attention layers), `block_bytes`
    - `tokens`: what the log calls "GPU KV cache size"; `concurrency`: "Maximum concurrency"
    - `token_bytes`: one more token of a long sequence
    - `sequence_bytes(n)`: what a sequence of n tokens takes of the pool
    - `needs_bytes(n)`: what vLLM asks for before it starts with max_model_len n; `longest`: the
      largest n that it would take; `spare_bytes`: a block that it never uses
    - `items`: what is allocated; less than the pool by less than a block, or by what another rank
      cannot match
    - `states_bytes`: the least that graphs of decode steps need
    - `problem`: why vLLM would not start, in a sentence
    """

    blocks: int
    block_size: int
    block_bytes: int
    tokens: int
    concurrency: float
    token_bytes: int
    sequence_bytes: Callable[[int], int]
    needs_bytes: Callable[[int], int]
    longest: int
    spare_bytes: int = 0
    states_bytes: int = 0
    items: tuple[tuple[str, int], ...] = ()
    problem: str = ""


class PoolLayout(Struct, frozen=True, kw_only=True):
    """How a rank's pool is cut: what does not depend on its size."""

    groups: tuple[CacheGroup, ...]  # of the whole model
    here: tuple[CacheGroup, ...]  # the rank's layers of each
    each: tuple[
        CacheSlot, ...
    ]  # the rank's layers, before windows are promoted or pages made equal
    how: BlockNeeds
    block_bytes: int
    block_size: int


def plan(run: Run, shard: ServerShard) -> PoolLayout:
    """Raises `UnsupportedCacheError` where vLLM has no pages for the model."""
    whole, now = slots(run, shard), version(run)
    behind = range(len(run.arch.layers), _end(whole)) if shard.head else ()  # a draft's
    places = {*shard.places, *behind}
    each = tuple(slot for slot in whole if slot.place in places)
    made = groups(run, whole if now >= (0, 11, 0) else each)
    here = tuple(group.of(places) for group in made)
    block = min((g.page.block for g in made if g.page.kind != STATE), default=first_block(run))
    return PoolLayout(groups=made, here=here, each=each, how=needs(run),
                block_bytes=block_bytes(here, now), block_size=block)  # fmt: skip


def problems(run: Run) -> Iterator[str]:
    """Caches that vLLM does not have."""
    named, now = str(run.options["kv_cache_dtype"]), version(run)
    mixers = [mixer for layer, _, _ in run.arch.runs for mixer in layer.mixers]
    latent = any(isinstance(mixer, LatentAttention) for mixer in mixers)
    since = SCALED.get(named)
    if since is not None and (now < since or latent or not v1(run)):
        where = "latent attention" if latent else f"vLLM {run.options['engine_version']}"
        yield f"inference.kv_cache_dtype={named!r} is not in {where}; use 'fp8'"
    elif named == "nvfp4" and not run.compute_capability.startswith("10."):
        yield ("inference.kv_cache_dtype='nvfp4' has kernels for compute capability 10.0 alone, "
               f"not for {run.compute_capability}; use 'fp8'")  # fmt: skip
    ranks, tp = int(run.options.get("decode_context_parallel_size") or 1), int(run.mesh.tp)
    if ranks > 1 and tp % ranks:
        yield (f"inference.decode_context_parallel_size={ranks} must divide "
               f"tensor_parallel_size={tp}; use {tp}")  # fmt: skip
    if ranks > 1 and any(run.arch.windows):
        yield ("inference.decode_context_parallel_size is not for layers with a window; leave it "
               "out")  # fmt: skip
    heads = max((m.kv_heads for m in mixers if isinstance(m, Attention)), default=0)
    if ranks > 1 and heads and ranks > tp // heads:
        yield (f"inference.decode_context_parallel_size={ranks} shares out what ranks repeat: "
               f"{tp} ranks repeat {heads} heads {max(1, tp // heads)} times; use at most "
               "that")  # fmt: skip


def _end(whole: tuple[CacheSlot, ...]) -> int:
    return max((slot.place for slot in whole), default=-1) + 1


def pool(run: Run, shard: ServerShard, pool_bytes: int, num_blocks: int | None = None) -> BlockPool:
    """The rank's pool. `num_blocks`: where another rank of the pipeline has room for fewer."""
    try:
        found = plan(run, shard)
    except UnsupportedCacheError as refusal:
        return _nothing(f"vLLM {run.options['engine_version']} has no cache for "
                        f"{run.arch.family}: {refusal}")  # fmt: skip
    size, length = found.block_bytes, int(run.options["max_seq_len"])
    if not size:  # no layer of this rank keeps anything
        return _nothing("")
    count = max(0, pool_bytes) // size
    count = count if num_blocks is None else min(count, num_blocks)
    sequence = _sequence_bytes(found)
    asked = _needs_bytes(run, found, sequence)
    spare = size if version(run) >= (0, 28, 0) else 0  # one block is never used
    most = pool_bytes - spare
    longest = _longest(asked, most, length)
    concurrency = count * size / sequence(length)
    return BlockPool(
        blocks=count, block_size=found.block_size, block_bytes=size,
        tokens=_tokens(run, found, count, concurrency, length), concurrency=concurrency,
        token_bytes=token_bytes(found), sequence_bytes=sequence, needs_bytes=asked,
        longest=longest, spare_bytes=spare, items=((_name(found, count), count * size),),
        states_bytes=_states(run, found) * size,
        problem=_problem(length, asked(length), most, longest) or _stateless(run, found, count),
    )  # fmt: skip


def _states(run: Run, found: PoolLayout) -> int:
    """Blocks that decode steps of every sequence need: graphs are captured with a state each.

    vllm 0.20.0 vllm/config/compilation.py resolve_cudagraph_mode_and_sizes.
    """
    kept = any(group.page.kind == STATE for group in found.groups)
    whole = v1(run) and version(run) >= STATES_FROM and not run.options.get("enforce_eager")
    return int(run.options["max_num_seqs"]) if kept and whole else 0


def _stateless(run: Run, found: PoolLayout, count: int) -> str:
    needed = _states(run, found)
    if needed <= count:
        return ""
    return (f"max_num_seqs={needed} is more than the {count} states that the cache has room for; "
            f"use max_num_seqs={max(1, count)}")  # fmt: skip


def _nothing(problem: str) -> BlockPool:
    """A pool without blocks."""
    return BlockPool(
        blocks=0,
        block_size=0,
        block_bytes=0,
        tokens=0,
        concurrency=0.0,
        token_bytes=0,
        sequence_bytes=lambda _: 0,
        needs_bytes=lambda _: 0,
        longest=0,
        problem=problem,
    )


def _sequence_bytes(found: PoolLayout) -> Callable[[int], int]:
    kinds = [group.page for group in found.groups]

    def sequence(context: int) -> int:
        return found.block_bytes * sum(blocks(page, context, found.how) for page in kinds)

    return sequence


def _needs_bytes(
    run: Run, found: PoolLayout, sequence: Callable[[int], int]
) -> Callable[[int], int]:
    """Before 0.14.0 each layer by itself, windows as such; then, until 0.17.0, the whole model
    whatever the stages of a pipeline.
    """
    if not v1(run) or version(run) >= (0, 17, 0):
        return sequence
    if version(run) >= (0, 14, 0):
        whole = block_bytes(found.groups, version(run))
        return lambda context: sequence(context) // found.block_bytes * whole
    kinds: dict[LayerPage, int] = {}
    for slot in found.each:
        kinds[slot.page] = kinds.get(slot.page, 0) + 1

    def asked(context: int) -> int:
        return sum(count * page.bytes * blocks(page, context, found.how)
                   for page, count in kinds.items())  # fmt: skip

    return asked


def _longest(asked: Callable[[int], int], room: int, most: int) -> int:
    """The largest max_model_len that passes, found as vLLM finds it."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if asked(middle) <= room else (low, middle - 1)
    return low


def _tokens(run: Run, found: PoolLayout, count: int, concurrency: float, length: int) -> int:
    """What the log says: before 0.20.1 blocks of one group, since then sequences x their length."""
    if version(run) >= (0, 20, 1) and v1(run):
        return int(concurrency * length)
    sizes = [group.page.block for group in found.groups]
    block = min(sizes, default=found.block_size)
    return count // max(1, len(sizes)) * block * found.how.context_ranks


def token_bytes(found: PoolLayout) -> int:
    """A token more takes a part of a block in every group of full attention."""
    grows = [group.page.block for group in found.groups if group.page.kind in GROWING]
    return sum(-(-found.block_bytes // (block * found.how.context_ranks)) for block in grows)


def _name(found: PoolLayout, count: int) -> str:
    name = f"keys and values: {count:,} blocks of {found.block_size:,} tokens"
    if len(found.groups) < 2:
        return name
    layers = max(len(group.slots) for group in found.here)
    return f"{name}, {len(found.groups)} groups of {layers} layers"


def _problem(length: int, asked: int, room: int, longest: int) -> str:
    if room <= 0:
        return "no memory is left for the cache; raise gpu_memory_utilization or use more GPUs"
    if asked <= room:
        return ""
    least = f"; use max_seq_len={longest} or less" if longest else ""
    return (f"one sequence of max_seq_len={length} takes {asked / GIB:.2f} GiB of cache, and "
            f"{room / GIB:.2f} GiB are left{least}")  # fmt: skip


def outside_bytes(run: Run, shard: ServerShard) -> int:
    """States of Mamba layers that V0 keeps beside the pool, one for each sequence it runs.

    vllm 0.7.3 vllm/model_executor/models/mamba_cache.py; made in the trial run.
    """
    if v1(run):
        return 0
    each = sum(page.state_bytes for place in shard.places
               for page in pages(run, run.arch, run.arch.layers[place], None, shard)
               if page.kind == STATE)  # fmt: skip
    return int(run.options["max_num_seqs"]) * each


def notes(run: Run, shard: ServerShard) -> tuple[str, ...]:
    """What people should know about the cache of this run."""
    found = []
    if run.options.get("enable_prefix_caching") is not False:
        found.append(PREFIX_NOTE)
    whole = slots(run, shard)
    local = any(slot.page.window for slot in whole) and any(
        slot.page.kind in GROWING for slot in whole)  # fmt: skip
    if local and not manages_hybrids(run, whole):
        found.append("this version keeps every token of layers with a window, as of the others")
    if any(s.page.kind == LATENT for s in whole) and shard.attention_tp > 1:
        found.append("latent attention keeps the same on every rank; "
                     "decode_context_parallel_size would share it out")  # fmt: skip
    return tuple(found)
