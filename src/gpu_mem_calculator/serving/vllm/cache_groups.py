"""How vLLM groups layers with different pages, so that they share one pool of blocks.

All groups take blocks from the same pool; a block is large enough for one page of every layer of
any group. Groups are formed for the whole model; each worker has its layers of each group.
vllm 0.11.0 vllm/v1/core/kv_cache_utils.py, other versions as marked.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from ...ledger.num import ceil_div
from ...run.run import Run
from ...training.generation.kv_cache import CROSS, FULL, LATENT, STATE, WINDOW
from .cache_layers import CHUNK, GROWING, CacheSlot, LayerPage, state_mode
from .speculative import EAGLE, method, tokens_ahead
from .versions import Version, uses_second_runner, version

LOCAL = (WINDOW, CHUNK)


class UnsupportedCacheError(Exception):
    """vLLM has no pages for these layers; the message says why."""


class CacheGroup(Struct, frozen=True):
    """Layers that share a block table.

    - `slots`: the layers
    - `page`: the page that decides how many blocks a sequence takes, equal for all layers
    """

    slots: tuple[CacheSlot, ...]
    page: LayerPage

    def on_worker(self, places: Iterable[int]) -> CacheGroup:
        """The group's layers on a worker."""
        here = frozenset(places)
        return CacheGroup(tuple(slot for slot in self.slots if slot.place in here), self.page)


class BlockNeeds(Struct, frozen=True, kw_only=True):
    """What the number of blocks of a sequence depends on.

    - `in_flight`: computed tokens whose blocks cannot be freed yet; since 0.26.0 those of every
      scheduled batch (vllm/config/vllm.py max_in_flight_tokens)
    - `context_ranks`: ranks that share a sequence's tokens (decode context parallelism)
    - `states`: recurrent states of a sequence; 0: one per block
    - `encoder`: tokens of the encoder
    """

    in_flight: int
    context_ranks: int
    states: int
    encoder: int


def block_needs(run: Run) -> BlockNeeds:
    """The needs of one run."""
    options, vllm_version, drafts = run.options, version(run), tokens_ahead(run)
    batches = 1
    if vllm_version >= (0, 26, 0):
        # drafts of the other methods are not scheduled asynchronously
        synchronous = drafts and method(run) not in EAGLE
        asynchronous = not synchronous and (run.mesh.pp == 1 or uses_second_runner(run))
        batches = int(run.mesh.pp) + asynchronous
    mode = state_mode(run)
    extra_states = drafts if vllm_version >= (0, 15, 0) else 0
    return BlockNeeds(
        in_flight=batches * int(options["max_num_batched_tokens"]),
        context_ranks=int(options.get("decode_context_parallel_size") or 1),
        states={"none": 1 + extra_states, "align": 2 + extra_states, "all": 0}[mode],
        encoder=run.arch.encoder_len or int(options["max_num_batched_tokens"]),
    )


def sequence_blocks(page: LayerPage, context: int, needs: BlockNeeds) -> int:
    """Blocks that one sequence of `context` tokens takes in a group with this page."""
    if page.kind in GROWING:
        rank_tokens = -(-context // needs.context_ranks)
        return -(-rank_tokens // page.block)
    if page.kind == WINDOW:  # a window may start inside a block
        return -(-min(page.window - 1 + needs.in_flight, context) // page.block) + 1
    if page.kind == CHUNK:
        return -(-min(page.window + needs.in_flight, context) // page.block)
    if page.kind == CROSS:
        return -(-needs.encoder // page.block)
    return needs.states or -(-context // page.block)


def cache_groups(run: Run, slots: tuple[CacheSlot, ...]) -> tuple[CacheGroup, ...]:
    """The groups of a model; one group if all layers always need the same number of blocks."""
    vllm_version = version(run)
    if not manages_hybrids(run, slots):
        slots = promote_windows(slots)
    if not slots:
        return ()
    if len({slot.page.block_key for slot in slots}) == 1:
        return (CacheGroup(slots, slots[0].page),)
    return tuple(_split(unify_pages(slots, vllm_version), vllm_version))


def manages_hybrids(run: Run, slots: Iterable[CacheSlot]) -> bool:
    """Whether blocks outside a window are freed; otherwise windows take blocks as full attention.

    Since 0.9.1; not with chunked attention since 0.10.1 (vllm/config/__init__.py: slower), and
    before that not with chunked attention and a draft head.
    """
    vllm_version = version(run)
    chunks = any(slot.page.kind == CHUNK for slot in slots)
    disabled = chunks and (vllm_version >= (0, 10, 1) or method(run) in EAGLE)
    return vllm_version >= (0, 9, 1) and not disabled


def promote_windows(slots: tuple[CacheSlot, ...]) -> tuple[CacheSlot, ...]:
    """Windows as full attention, if a model has both (unify_hybrid_kv_cache_specs)."""
    if not any(slot.page.kind in GROWING for slot in slots):
        return slots
    full = {"kind": FULL, "window": 0}
    return tuple(one.changed(**full) if one.page.kind in LOCAL else one for one in slots)


def unify_pages(slots: tuple[CacheSlot, ...], vllm_version: Version) -> tuple[CacheSlot, ...]:
    """Pages of one size: smaller pages get more tokens, or are padded.

    Since 0.12.0 (unify_kv_cache_spec_page_size); padded since 0.24.0.
    """
    largest = max(slot.page.bytes for slot in slots)
    unified = []
    for slot in slots:
        page = slot.page
        if page.bytes != largest:
            divides = largest % page.bytes == 0 and page.kind != STATE
            pads = vllm_version >= (0, 24, 0) and page.kind != LATENT
            if vllm_version < (0, 12, 0) or not (divides or pads):
                sizes = f"{page.bytes} and {largest}"
                raise UnsupportedCacheError(f"pages of {sizes} bytes cannot share a pool")
            if divides:
                page = replace(page, block=page.block * (largest // page.bytes))
            else:
                page = replace(page, padded=largest)
        unified.append(CacheSlot(slot.place, page))
    return tuple(unified)


def group_size(counts: list[int], vllm_version: Version) -> int:
    """Layers of a group: the count of the rarest page kind, of the commonest if counts are similar.

    vllm 0.12.0: similar within a quarter; 0.18.0: within a half.
    """
    fewest, most = min(counts), max(counts)
    similar = 1.5 if vllm_version >= (0, 18, 0) else 1.25 if vllm_version >= (0, 12, 0) else 0
    return most if most < fewest * similar else fewest


def _split(slots: tuple[CacheSlot, ...], vllm_version: Version) -> Iterable[CacheGroup]:
    kinds: dict[LayerPage, list[CacheSlot]] = {}
    for slot in slots:
        kinds.setdefault(slot.page, []).append(slot)
    size = group_size([len(members) for members in kinds.values()], vllm_version)
    for page, members in kinds.items():
        count = int(ceil_div(len(members), size))
        yield from (CacheGroup(tuple(members[first::count]), page) for first in range(count))


def block_bytes(groups: Iterable[CacheGroup], vllm_version: Version) -> int:
    """Bytes of one block on a worker, in all its layers.

    Since 0.28.0 the largest group; before, a page for each layer of the longest group.
    """
    filled = [group for group in groups if group.slots]
    if not filled:
        return 0
    if len(filled) == 1 or vllm_version >= (0, 28, 0):
        return max(sum(slot.page.bytes for slot in group.slots) for group in filled)
    return max(len(group.slots) for group in filled) * filled[0].page.bytes
