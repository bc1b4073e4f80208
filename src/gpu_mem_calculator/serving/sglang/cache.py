"""The KV-cache pool: how many tokens fit into the memory for it, and which buffers it has.

sglang 0.5.23 srt/model_executor/pool_configurator.py, srt/mem_cache/kv_cache_configurator.py and
memory_pool.py. One page more than the tokens need is allocated: padding is written there.

Legend: F and S bytes of a token in all full layers and in all layers with a window; m bytes of a
request's state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec import Struct

from ...ledger.num import power_of_two, round_up
from ...ledger.words import words
from ...models.arch.blocks import Attention, Indexer, LatentAttention
from ...run.weights.rank_weights import STEP
from ...training.generation import kv_cache
from ...training.generation.kv_cache import INDEX, STATE, WINDOW, LayerState, unscaled_row
from . import speculative
from .options import SglangOptions
from .versions import (
    COUNTED_DRAFT,
    EXACT_HOST,
    HALF_REQUESTS,
    HOST_INDEX,
    HOST_SIDECARS,
    HOST_STATES,
    PACKED_DRAFT,
    SPARE_STATE,
    SPLIT_HOST,
    SPLIT_WINDOWS,
)

SPLIT_FAMILIES = ("gpt_oss", "llama4", "gemma4", "mimo_v2", "step3p5")  # model_config.py
EVICTION_INTERVAL = 128  # tokens outside the window that are not yet freed (environ.py)
INDEX_BLOCK, SCALE_BYTES = 128, 4  # the indexer's keys: fp8, one scale for each block
LEAST_REQUESTS, MOST_REQUESTS, REQUEST_RATIO = 2048, 4096, 512
GB = 10**9  # of hicache_size
STATE_BITS, CONV_BITS = 32, 16  # configs/mamba_utils.py mamba2_state_dtype
SLOTS, OVERLAP_SLOTS = 3, 2  # copies of a request's state under prefix caching
OVERLAP_FAMILIES = words(
    "qwen3_next qwen3_5 kimi_linear falcon_h1 granitemoehybrid nemotron_h bailing_moe"
)


class CacheCell(Struct, frozen=True, kw_only=True):
    """Bytes of one token and of one request's state on this rank.

    - `full`: F, a token in the layers of the main pool
    - `windowed`: S, a token in the layers with a window, where they have a separate pool
    - `window`: tokens of that window
    - `state`: m
    - `draft`: a token in the draft's layers
    - `index`: the indexer's part of F
    """

    full: int
    index: int = 0
    windowed: int = 0
    window: int = 0
    state: int = 0
    draft: int = 0


class SglangPool(Struct, frozen=True, kw_only=True):
    """The allocated buffers, and what one sequence takes of them.

    - `tokens`, `window_tokens`: capacity of the main pool and of that of layers with a window
    - `slots`: states that fit
    - `requests`: max_running_requests
    - `parts`: name, bytes and formula of each buffer
    - `share(context)`: the largest share that one sequence takes of any buffer
    - `draft_bytes`: the draft's cache, which `bytes` leaves out
    """

    tokens: int
    window_tokens: int = 0
    slots: int = 0
    requests: int
    parts: tuple[tuple[str, int, str], ...]
    share: Callable[[int], float]
    cell: CacheCell
    draft_bytes: int = 0

    @property
    def bytes(self) -> int:
        """Bytes of all buffers but the draft's."""
        return sum(size for _, size, _ in self.parts)


def splits_windows(setting: SglangOptions) -> bool:
    """Whether layers with a window have a separate pool; else they keep every token."""
    arch = setting.run.arch
    known = arch.family.startswith(SPLIT_FAMILIES)
    return setting.version >= SPLIT_WINDOWS and known and any(arch.windows)


def cache_cell(setting: SglangOptions) -> CacheCell:
    """Bytes of a token and of a request's state in the layers of this rank."""
    run, shard, row = setting.run, setting.shard, unscaled_row(setting.cache_bits)
    caches = list(_layer_caches(setting))
    split = splits_windows(setting)
    windowed = [one for one in caches if split and one.kind == WINDOW]
    full = [one for one in caches if one.kind != STATE and one not in windowed]
    layers = speculative.draft_layers(run)
    drafts = [one for x in layers for one in kv_cache.layer_cache(x, None, shard, row, 0, 0)]
    return CacheCell(
        full=sum(_token_bytes(setting, one) * len(one.places) for one in full),
        windowed=sum(one.token_bytes * len(one.places) for one in windowed),
        window=max((one.window or 0 for one in windowed), default=0),
        state=sum(one.state_bytes * len(one.places) for one in caches if one.kind == STATE),
        draft=sum(_token_bytes(setting, one) for one in drafts) if shard.head else 0,
        index=sum(
            _token_bytes(setting, one) * len(one.places) for one in full if one.kind == INDEX
        ),
    )


def _layer_caches(setting: SglangOptions) -> Iterable[LayerState]:
    row, arch, shard = unscaled_row(setting.cache_bits), setting.run.arch, setting.shard
    return kv_cache.cached_states(arch, shard, row, state_bits=STATE_BITS, conv_bits=CONV_BITS)


def _token_bytes(setting: SglangOptions, one: LayerState) -> int:
    """Bytes of one token in one layer; latents and an indexer's keys have special layouts.

    memory_pool.py DSATokenToKVPool; kv_cache_configurator.py calculate_mla_kv_cache_dim: in fp8
    the rotary part stays in 16 bits, with one scale for 128 elements of the rest.
    """
    if one.kind == INDEX:
        dim = _indexer(setting).key_dim
        return dim + dim // INDEX_BLOCK * SCALE_BYTES
    if setting.sparse and setting.cache_bits == 8:
        mixer = next(m for m in setting.mixers if isinstance(m, LatentAttention))
        return mixer.kv_rank + mixer.kv_rank // INDEX_BLOCK * SCALE_BYTES + 2 * mixer.rope_dim
    return one.token_bytes


def _indexer(setting: SglangOptions) -> Indexer:
    mixers = (m for m in setting.mixers if isinstance(m, Attention | LatentAttention))
    return next(mixer.index for mixer in mixers if mixer.index is not None)


def max_requests(setting: SglangOptions, tokens: int) -> int:
    """`max_running_requests` of this rank: kv_cache_configurator.py resolve_max_num_reqs."""
    limit = setting.run.options["max_num_seqs"]
    if limit is not None:
        requests = max(1, int(limit) // setting.attention_dp)
    else:
        requests = int(tokens / setting.context * REQUEST_RATIO)
        requests = max(min(requests, MOST_REQUESTS), LEAST_REQUESTS)
    return min(requests, tokens // 2) if setting.version >= HALF_REQUESTS else requests


def slots_of_a_request(setting: SglangOptions) -> int:
    """States that one running request may hold: its current one, and those of its prefix."""
    if setting.run.options["disable_radix_cache"]:
        return 1
    known = setting.run.arch.family.startswith(tuple(OVERLAP_FAMILIES))
    overlaps = setting.version >= (0, 5, 14) and known
    return SLOTS + (OVERLAP_SLOTS if overlaps else 0)


def _slots(setting: SglangOptions, free: int, state: int) -> int:
    """How many states of `state` bytes are allocated out of `free` bytes.

    One for each request where max_num_seqs is set without prefix caching, else as many as fit into
    the share that mamba_full_memory_ratio gives them.
    """
    options = setting.run.options
    if options["disable_radix_cache"] and options["max_num_seqs"] is not None:
        return int(options["max_num_seqs"]) // setting.attention_dp
    ratio = float(options["mamba_full_memory_ratio"])
    return int(free * ratio / (1 + ratio)) // state - (setting.version >= SPARE_STATE)


def largest_pool(setting: SglangOptions, free: int) -> SglangPool:
    """The pool that SGLang allocates out of `free` bytes."""
    cell, page = cache_cell(setting), setting.page
    slots = 0
    if cell.state:
        slots = _slots(setting, free, cell.state)
        free -= (slots + (setting.version >= SPARE_STATE)) * cell.state
    ratio = float(setting.run.options["swa_full_tokens_ratio"])
    draft = cell.draft if setting.version >= COUNTED_DRAFT else 0
    each = cell.full + draft + int(ratio * cell.windowed)
    tokens = max(0, free) // each if each else setting.context
    if speculative.method(setting.run) and (0, 4, 6) <= setting.version < (0, 5, 7):
        depth = speculative.draft_depth(setting.run)
        draft_tokens = depth.steps * depth.branches + depth.tokens
        tokens += max_requests(setting, tokens) * draft_tokens + 100
    tokens = min(tokens, setting.run.options["max_total_tokens"] or tokens) // page * page
    return build_pool(setting, cell, tokens, max(0, slots))


def build_pool(setting: SglangOptions, cell: CacheCell, tokens: int, slots: int) -> SglangPool:
    """The buffers for `tokens` tokens and `slots` states."""
    page, ratio = setting.page, float(setting.run.options["swa_full_tokens_ratio"])
    window_tokens = int(tokens * ratio) // page * page if cell.windowed else 0
    requests = max_requests(setting, tokens)
    request_slots = slots_of_a_request(setting)
    if cell.state:
        requests = min(requests, slots // request_slots)
    windows = "keys and values of layers with a window"
    rows = (
        ("keys and values", tokens, "tokens", page, cell.full),
        (windows, window_tokens, "tokens", page, cell.windowed),
        ("states", slots, "states", 1, cell.state),
    )
    parts = tuple(
        (name, (n + spare) * each, f"({n:,} {unit} + {spare} for padding) × {each:,} bytes")
        for name, n, unit, spare, each in rows
        if each or name == rows[0][0]
    )

    def share(context: int) -> float:
        pages = -(-context // page) * page
        shares = [pages / tokens if tokens else float("inf")]
        if cell.windowed:
            live = min(pages, cell.window + EVICTION_INTERVAL + page)
            shares.append(live / window_tokens if window_tokens else float("inf"))
        if cell.state:
            shares.append(request_slots / slots if slots else float("inf"))
        return max(shares)

    return SglangPool(
        tokens=tokens,
        window_tokens=window_tokens,
        slots=slots,
        requests=requests,
        parts=parts,
        share=share,
        cell=cell,
        draft_bytes=(tokens + page) * cell.draft,
    )


def rounding_bytes(setting: SglangOptions, pool: SglangPool) -> int:
    """Bytes lost between the pool's buffers: one each for the keys and the values of a layer, each
    rounded up to whole steps of the allocator.
    """
    total = 0
    for one in _layer_caches(setting):
        if one.kind == STATE:
            continue
        windowed = pool.window_tokens and one.kind == WINDOW
        rows = (pool.window_tokens if windowed else pool.tokens) + setting.page
        count = 1 if one.kind in (kv_cache.LATENT, INDEX) else 2
        each = rows * _token_bytes(setting, one) // count
        total += len(one.places) * count * int(round_up(each, STEP) - each)
    return total


class HostPool(Struct, frozen=True):
    """A pool's copy in host RAM: how many units it holds, and of how many bytes each."""

    name: str
    count: int
    each: int
    pinned: bool  # by torch, which takes a power of two

    @property
    def bytes(self) -> int:
        """What it takes of the host."""
        return power_of_two(self.count * self.each) if self.pinned else self.count * self.each

    @property
    def formula(self) -> str:
        """How `bytes` is computed."""
        if self.pinned:
            return f"{self.bytes:,} bytes, a power of two"
        return f"{self.count:,} × {self.each:,} bytes"


def host_pools(setting: SglangOptions, pool: SglangPool) -> list[HostPool]:
    """What the hierarchical cache keeps on the host, of each rank, the main pool first.

    sglang 0.5.18 srt/mem_cache/pool_host/base.py, hybrid_cache/hybrid_pool_assembler.py,
    kv_cache_builder.py maybe_register_hicache_draft; 0.5.3 memory_pool_host.py pins by torch.
    """
    cell, options, now = pool.cell, setting.run.options, setting.version
    fixed, ratio = int(options["hicache_size"] or 0) * GB, float(options["hicache_ratio"] or 0)
    if not fixed and not ratio:
        return []
    copied = cell.index if HOST_INDEX <= now < HOST_SIDECARS else 0
    own = speculative.method(setting.run) in (speculative.EAGLE, speculative.NEXTN)
    packed = cell.draft if own and setting.run.draft is None and now >= PACKED_DRAFT else 0
    rows = (
        ("cache on the host", pool.tokens, cell.full - cell.index + copied + packed, setting.page),
        ("cache on the host: windows", pool.window_tokens, cell.windowed, setting.page),
        ("cache on the host: states", pool.slots, cell.state, 1),
    )
    total = max(1, sum(units * each for _, units, each, _ in rows))
    pinned = now < EXACT_HOST

    def copy(name: str, units: int, each: int, page: int) -> HostPool:
        part = fixed * units * each // total if now >= SPLIT_HOST else fixed
        count = part // each if fixed else int(ratio * units)
        pages = count // page + (now >= HOST_STATES)
        return HostPool(name, pages * page, each, pinned)

    found = [copy(*row) for row in rows if row[1] and row[2]]
    if now >= HOST_SIDECARS and found:
        beside = (("indexer", cell.index), ("draft", 0 if packed else cell.draft))
        tokens = found[0].count
        found += (
            HostPool(f"cache on the host: {name}", tokens, each, pinned)
            for name, each in beside
            if each
        )
    return found
