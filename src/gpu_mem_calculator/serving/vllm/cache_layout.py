"""How a rank's KV-cache pool is divided into blocks, independent of its size."""

from __future__ import annotations

from msgspec import Struct

from ...run.run import Run
from ...run.weights.shards import ServerShard
from ...training.generation.kv_cache import STATE
from .cache_groups import BlockNeeds, CacheGroup, block_bytes, block_needs, cache_groups
from .cache_layers import GROWING, CacheSlot, base_block_size, cache_slots
from .versions import version


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
