"""Layers with different pages share one pool of blocks: how vLLM groups them.

All groups draw blocks from the same pool; a block is large enough for one page of every layer of
any group. Groups are made for the whole model; each worker then has its own layers of each.
vllm 0.11.0 vllm/v1/core/kv_cache_utils.py, other versions as marked.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from ...generation.kv_cache import CROSS, FULL, LATENT, STATE, WINDOW
from ...ledger.num import ceil_div
from ...run.run import Run
from .cache_layers import CHUNK, GROWING, CacheSlot, LayerPage, state_mode
from .speculative import EAGLE, method, tokens_ahead
from .versions import Version, second_runner, version

LOCAL = (WINDOW, CHUNK)


class UnsupportedCacheError(Exception):
    """vLLM has no pages for these layers; the message says why."""


class CacheGroup(Struct, frozen=True):
    """Layers that share a table of blocks."""

    slots: tuple[CacheSlot, ...]
    page: LayerPage  # of each layer, as far as the number of blocks goes

    def of(self, places: Iterable[int]) -> CacheGroup:
        """The part on a worker."""
        here = frozenset(places)
        return CacheGroup(tuple(slot for slot in self.slots if slot.place in here), self.page)


class BlockNeeds(Struct, frozen=True, kw_only=True):
    """What decides how many blocks a sequence takes.

    `in_flight`: tokens that are computed and may not be given back yet; since 0.26.0 those of every
    batch that is under way (vllm/config/vllm.py max_in_flight_tokens).
    """

    in_flight: int
    context_ranks: int
    states: int  # 0: one a block
    encoder: int


def needs(run: Run) -> BlockNeeds:
    """Of one run."""
    options, now, ahead = run.options, version(run), tokens_ahead(run)
    batches = 1
    if now >= (0, 26, 0):
        slow = ahead and method(run) not in EAGLE  # such drafts are not scheduled ahead
        early = not slow and (run.mesh.pp == 1 or second_runner(run))
        batches = int(run.mesh.pp) + early
    mode = state_mode(run)
    extra = ahead if now >= (0, 15, 0) else 0
    return BlockNeeds(
        in_flight=batches * int(options["max_num_batched_tokens"]),
        context_ranks=int(options.get("decode_context_parallel_size") or 1),
        states={"none": 1 + extra, "align": 2 + extra, "all": 0}[mode],
        encoder=run.arch.encoder_len or int(options["max_num_batched_tokens"]),
    )


def blocks(page: LayerPage, context: int, how: BlockNeeds) -> int:
    """Blocks that one sequence of so many tokens takes in a group with this page."""
    if page.kind in GROWING:
        own = -(-context // how.context_ranks)
        return -(-own // page.block)
    if page.kind == WINDOW:  # it may start inside a block
        return -(-min(page.window - 1 + how.in_flight, context) // page.block) + 1
    if page.kind == CHUNK:
        return -(-min(page.window + how.in_flight, context) // page.block)
    if page.kind == CROSS:
        return -(-how.encoder // page.block)
    return how.states or -(-context // page.block)


def groups(run: Run, slots: tuple[CacheSlot, ...]) -> tuple[CacheGroup, ...]:
    """The groups of a model; one where all layers always need the same number of blocks."""
    now = version(run)
    if not manages_hybrids(run, slots):
        slots = promoted(slots)
    if not slots:
        return ()
    if len({slot.page.sort for slot in slots}) == 1:
        return (CacheGroup(slots, slots[0].page),)
    return tuple(_split(equal_pages(slots, now), now))


def manages_hybrids(run: Run, slots: Iterable[CacheSlot]) -> bool:
    """Whether windows are given back; else they take blocks as full attention does.

    Since 0.9.1; not with chunked attention since 0.10.1 (vllm/config/__init__.py: slower), and
    before that not with it and a draft head.
    """
    now = version(run)
    chunks = any(slot.page.kind == CHUNK for slot in slots)
    off = chunks and (now >= (0, 10, 1) or method(run) in EAGLE)
    return now >= (0, 9, 1) and not off


def promoted(slots: tuple[CacheSlot, ...]) -> tuple[CacheSlot, ...]:
    """Windows as full attention, where a model has both (unify_hybrid_kv_cache_specs)."""
    if not any(slot.page.kind in GROWING for slot in slots):
        return slots
    return tuple(
        CacheSlot(s.place, replace(s.page, kind=FULL, window=0)) if s.page.kind in LOCAL else s
        for s in slots
    )


def equal_pages(slots: tuple[CacheSlot, ...], now: Version) -> tuple[CacheSlot, ...]:
    """Pages of one size: the smaller ones hold more tokens, or are padded.

    Since 0.12.0 (unify_kv_cache_spec_page_size); padded since 0.24.0.
    """
    largest = max(slot.page.bytes for slot in slots)
    found = []
    for slot in slots:
        page = slot.page
        if page.bytes != largest:
            whole = largest % page.bytes == 0 and page.kind != STATE
            if now < (0, 12, 0) or not (whole or (now >= (0, 24, 0) and page.kind != LATENT)):
                raise UnsupportedCacheError(
                    f"pages of {page.bytes} and {largest} bytes cannot share a pool"
                )
            page = (replace(page, block=page.block * (largest // page.bytes)) if whole else
                    replace(page, padded=largest))  # fmt: skip
        found.append(CacheSlot(slot.place, page))
    return tuple(found)


def group_size(counts: list[int], now: Version) -> int:
    """Layers of a group: as many as the rarest kind has, or all of a kind where counts are alike.

    vllm 0.12.0: within a quarter; 0.18.0: within a half.
    """
    few, many = min(counts), max(counts)
    alike = (many < few * 1.25 and now >= (0, 12, 0)) or (many < few * 1.5 and now >= (0, 18, 0))
    return many if alike else few


def _split(slots: tuple[CacheSlot, ...], now: Version) -> Iterable[CacheGroup]:
    kinds: dict[LayerPage, list[CacheSlot]] = {}
    for slot in slots:
        kinds.setdefault(slot.page, []).append(slot)
    size = group_size([len(found) for found in kinds.values()], now)
    for page, found in kinds.items():
        count = int(ceil_div(len(found), size))
        yield from (CacheGroup(tuple(found[first::count]), page) for first in range(count))


def block_bytes(parts: Iterable[CacheGroup], now: Version) -> int:
    """Bytes of one block on a worker, all its layers together.

    Since 0.28.0 the largest group; before, a page for each layer of the longest.
    """
    here = [part for part in parts if part.slots]
    if not here:
        return 0
    if len(here) == 1 or now >= (0, 28, 0):
        return max(sum(slot.page.bytes for slot in part.slots) for part in here)
    return max(len(part.slots) for part in here) * here[0].page.bytes
