"""The pool for the cache: how many tokens fit into what is left, and of what it is made.

sglang 0.5.18 srt/model_executor/pool_configurator.py, srt/mem_cache/kv_cache_configurator.py and
memory_pool.py. A page more than the tokens is allocated: padding writes there.

Legend: F and S bytes of a token in all full layers and in all with a window; m a request's state.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from ...generation.kv_cache import (
    INDEX,
    LATENT,
    STATE,
    WINDOW,
    LayerState,
    kept,
    layer_cache,
    plain_row,
)
from ...ledger.num import round_up
from ...model.blocks import Attention, Indexer, LatentAttention
from . import speculative
from .options import SglangOptions
from .segments import STEP
from .versions import COUNTED_DRAFT, HALF_REQUESTS, SPARE_STATE, SPLIT_WINDOWS

SPLIT_FAMILIES = ("gpt_oss", "llama4", "gemma4", "mimo_v2", "step3p5")  # model_config.py
EVICTION_INTERVAL = 128  # tokens behind a window that wait to be freed (environ.py)
INDEX_BLOCK, SCALE_BYTES = 128, 4  # the indexer's keys: fp8, a scale for each block
LEAST_REQUESTS, MOST_REQUESTS, REQUEST_RATIO = 2048, 4096, 512
STATE_BITS, CONV_BITS = 32, 16  # configs/mamba_utils.py mamba2_state_dtype
SLOTS, OVERLAP_SLOTS = 3, 2  # states of a request that prefix caching keeps apart
OVERLAP_FAMILIES = ("qwen3_next", "qwen3_5", "kimi_linear", "falcon_h1", "granitemoehybrid",
                    "nemotron_h", "bailing_moe")  # fmt: skip


class CacheCell(Struct, frozen=True, kw_only=True):
    """One token, or one request, on the rank."""

    full: int  # F
    windowed: int = 0  # S, where it has a pool of its own
    window: int = 0
    state: int = 0  # m
    draft: int = 0  # a token in the draft's layers


class SglangPool(Struct, frozen=True, kw_only=True):
    """What was allocated, and what one sequence takes of it.

    `share(context)`: the largest part that one sequence takes of any of the buffers.
    """

    tokens: int
    window_tokens: int = 0
    slots: int = 0
    requests: int
    parts: tuple[tuple[str, int, str], ...]  # name, bytes, how they come about
    share: Callable[[int], float]
    cell: CacheCell
    draft_bytes: int = 0

    @property
    def bytes(self) -> int:
        """All of it but the draft's."""
        return sum(size for _, size, _ in self.parts)


def splits_windows(how: SglangOptions) -> bool:
    """Whether layers with a window have a pool of their own; else they keep every token."""
    arch = how.run.arch
    known = arch.family.startswith(SPLIT_FAMILIES)
    return how.version >= SPLIT_WINDOWS and known and any(arch.windows)


def cell(how: SglangOptions) -> CacheCell:
    """Bytes of a token in the layers of this rank, and of a request."""
    run, shard = how.run, how.shard
    caches = kept(run.arch, shard, plain_row(how.cache_bits), state_bits=STATE_BITS,
                  conv_bits=CONV_BITS)  # fmt: skip
    apart = splits_windows(how)
    full = sum(_token_bytes(how, one) * len(one.places) for one in caches
               if one.kind != STATE and not (apart and one.kind == WINDOW))  # fmt: skip
    slid = [one for one in caches if apart and one.kind == WINDOW]
    state = sum(one.state_bytes * len(one.places) for one in caches if one.kind == STATE)
    drafts = [
        one
        for layer in speculative.draft_layers(run)
        for one in layer_cache(layer, None, shard, plain_row(how.cache_bits), 0, 0)
    ]
    return CacheCell(
        full=full, windowed=sum(one.token_bytes * len(one.places) for one in slid),
        window=max((one.window or 0 for one in slid), default=0), state=state,
        draft=sum(_token_bytes(how, one) for one in drafts) if shard.head else 0,
    )  # fmt: skip


def _token_bytes(how: SglangOptions, one: LayerState) -> int:
    """A token of one layer: latents and an indexer's keys have layouts of their own.

    memory_pool.py DSATokenToKVPool; kv_cache_configurator.py calculate_mla_kv_cache_dim: in fp8
    the rotary part stays in 16 bits, with a scale for 128 elements of the rest.
    """
    if one.kind == INDEX:
        dim = _indexer(how).key_dim
        return dim + dim // INDEX_BLOCK * SCALE_BYTES
    if how.sparse and how.cache_bits == 8:
        mixer = next(m for layer in how.run.arch.layers for m in layer.mixers
                     if isinstance(m, LatentAttention))  # fmt: skip
        return mixer.kv_rank + mixer.kv_rank // INDEX_BLOCK * SCALE_BYTES + 2 * mixer.rope_dim
    return one.token_bytes


def _indexer(how: SglangOptions) -> Indexer:
    return next(m.index for layer in how.run.arch.layers for m in layer.mixers
                if isinstance(m, Attention | LatentAttention) and m.index is not None)  # fmt: skip


def max_requests(how: SglangOptions, tokens: int) -> int:
    """`max_running_requests` of this rank: kv_cache_configurator.py resolve_max_num_reqs."""
    given = how.run.options["max_num_seqs"]
    if given is not None:
        wanted = max(1, int(given) // how.attention_dp)
    else:
        wanted = int(tokens / how.context * REQUEST_RATIO)
        wanted = max(min(wanted, MOST_REQUESTS), LEAST_REQUESTS)
    return min(wanted, tokens // 2) if how.version >= HALF_REQUESTS else wanted


def slots_of_a_request(how: SglangOptions) -> int:
    """States that one running request may hold: its own, and those of its prefix."""
    if how.run.options["disable_radix_cache"]:
        return 1
    overlaps = how.version >= (0, 5, 14) and how.run.arch.family.startswith(OVERLAP_FAMILIES)
    return SLOTS + (OVERLAP_SLOTS if overlaps else 0)


def _slots(how: SglangOptions, rest: int, state: int) -> int:
    """States in `rest` bytes: their share, or one a request where no prefix is kept."""
    options = how.run.options
    if options["disable_radix_cache"] and options["max_num_seqs"] is not None:
        return int(options["max_num_seqs"]) // how.attention_dp
    ratio = float(options["mamba_full_memory_ratio"])
    return int(rest * ratio / (1 + ratio)) // state - (how.version >= SPARE_STATE)


def cut(how: SglangOptions, rest: int) -> SglangPool:
    """The pool in `rest` bytes."""
    one, page = cell(how), how.page
    slots = 0
    if one.state:
        slots = _slots(how, rest, one.state)
        rest -= (slots + (how.version >= SPARE_STATE)) * one.state
    ratio = float(how.run.options["swa_full_tokens_ratio"])
    draft = one.draft if how.version >= COUNTED_DRAFT else 0
    each = one.full + draft + int(ratio * one.windowed)
    tokens = max(0, rest) // each if each else how.context
    ahead = speculative.ahead(how.run)
    if speculative.method(how.run) and (0, 4, 6) <= how.version < (0, 5, 7):
        tokens += max_requests(how, tokens) * (ahead.steps * ahead.branches + ahead.tokens) + 100
    tokens = min(tokens, how.run.options["max_total_tokens"] or tokens) // page * page
    return sized(how, one, tokens, max(0, slots))


def sized(how: SglangOptions, one: CacheCell, tokens: int, slots: int) -> SglangPool:
    """The buffers for so many tokens and states."""
    page, ratio = how.page, float(how.run.options["swa_full_tokens_ratio"])
    slid = int(tokens * ratio) // page * page if one.windowed else 0
    requests = max_requests(how, tokens)
    held_slots = slots_of_a_request(how)
    if one.state:
        requests = min(requests, slots // held_slots)
    rows = [("keys and values", tokens, page, one.full)]
    if one.windowed:
        rows.append(("keys and values of layers with a window", slid, page, one.windowed))
    if one.state:
        rows.append(("states", slots, 1, one.state))
    parts = tuple((name, (count + spare) * each, f"({count:,} + {spare}) × {each:,}")
                  for name, count, spare, each in rows)  # fmt: skip

    def share(context: int) -> float:
        pages = -(-context // page) * page
        shares = [pages / tokens if tokens else float("inf")]
        if one.windowed:
            live = min(pages, one.window + EVICTION_INTERVAL + page)
            shares.append(live / slid if slid else float("inf"))
        if one.state:
            shares.append(held_slots / slots if slots else float("inf"))
        return max(shares)

    return SglangPool(tokens=tokens, window_tokens=slid, slots=slots, requests=requests,
                parts=parts, share=share, cell=one,
                draft_bytes=(tokens + page) * one.draft)  # fmt: skip


def gaps(how: SglangOptions, pool: SglangPool) -> int:
    """What lies between the pool's buffers: keys and values of each layer have one each, in whole
    steps of the allocator.
    """
    total = 0
    for one in kept(how.run.arch, how.shard, plain_row(how.cache_bits), state_bits=STATE_BITS,
                    conv_bits=CONV_BITS):  # fmt: skip
        if one.kind == STATE:
            continue
        apart = pool.window_tokens and one.kind == WINDOW
        rows = (pool.window_tokens if apart else pool.tokens) + how.page
        count = 1 if one.kind in (LATENT, INDEX) else 2
        each = rows * _token_bytes(how, one) // count
        total += len(one.places) * count * int(round_up(each, STEP) - each)
    return total
