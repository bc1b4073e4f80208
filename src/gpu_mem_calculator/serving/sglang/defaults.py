"""What SGLang chooses by default, from the card's memory and the ranks that share a model.

server_args.py at each version: __post_init__ until 0.5.2, _handle_gpu_memory_settings from 0.5.3,
arg_groups/memory_hook.py from 0.5.19.
Sizes are in MiB, which SGLang reads from nvidia-smi.
"""

from __future__ import annotations

from msgspec import Struct

from ...ledger.source import code
from ...run.releases import Version
from .versions import GRAPH_TABLES, LARGER_STEPS, PREFILL_GRAPHS, RESERVED_BY_SUM

GIB_IN_MIB = 1024
CHOICES = code("sglang 0.5.23 srt/arg_groups/memory_hook.py handle_gpu_memory_settings")


class CardMemory(Struct, frozen=True, kw_only=True):
    """What the defaults depend on."""

    version: Version
    mib: int
    tp: int
    pp: int = 1
    dp: int = 1  # attention groups: attention is not sharded among them
    speculation: str = ""  # its method; empty: none
    latent: bool = False


def chunked_prefill_size(card: CardMemory) -> int:
    """Tokens of one prefill pass."""
    limits: tuple[tuple[int, int], ...] = ((35, 2048), (60, 4096), (160, 8192))
    if card.version < GRAPH_TABLES:
        small = 2048 if card.mib < 25_000 else 8192
        return 16384 if card.mib > 180_000 and card.version >= (0, 4, 7) else small
    if card.version < RESERVED_BY_SUM:
        limits = ((35, 2048), (160, 8192))
    if card.version >= LARGER_STEPS:
        limits = ((20, 2048), (60, 4096), (160, 8192))
    return next((size for most, size in limits if card.mib < most * GIB_IN_MIB), 16384)


def cuda_graph_max_bs(card: CardMemory) -> int:
    """Sequences of the largest decode graph."""
    few = card.tp < 4
    if card.version >= RESERVED_BY_SUM:
        small = 24 if card.version >= (0, 5, 6) else 16
        below_35 = (48, 160) if card.version >= LARGER_STEPS else (small, 80)
        limits = ((20, 8, 8), (35, *below_35), (60, 32, 160), (160, 256, 512))
        for most, alone, shared in limits:
            if card.mib < most * GIB_IN_MIB:
                return alone if few else shared
        return 512
    if card.mib < (35 * GIB_IN_MIB if card.version >= GRAPH_TABLES else 25_000):
        return 8 if few else 80
    if card.version < (0, 4, 6) or card.mib <= 90 * GIB_IN_MIB:
        return 160
    return 256 if card.mib <= 160_000 else 512


def decode_sizes(card: CardMemory, most: int, requests: int) -> tuple[int, ...]:
    """Batch sizes that decode graphs are captured for."""
    most = min(most, requests)
    if card.version >= RESERVED_BY_SUM:
        if card.speculation:
            low = (*range(1, 9), *range(10, 33, 2), *range(40, 65, 4))
            sizes = [*low, *range(72, 257, 8), *range(272, most + 1, 16)]
        else:
            low = (1, 2, 4, 8, 12, *range(16, 257, 8))
            sizes = [*low, *range(272, 512, 16), *range(512, most + 1, 32)]
    elif card.speculation and card.version >= (0, 4, 6):
        sizes = [*range(1, 9), *range(10, 33, 2), *range(40, 64, 8), *range(80, 161, 16)]
    else:
        sizes = [1, 2, 4, *range(8, 161, 8)]
    if card.version < RESERVED_BY_SUM:
        sizes += [*range(160, min(most, 256) + 1, 8), *range(256, most + 1, 16)]
    return tuple(sorted({size for size in sizes if size <= most} | {most}))


def prefill_sizes(most: int) -> tuple[int, ...]:
    """Numbers of tokens that prefill graphs are captured for."""
    low = (*range(4, 33, 4), *range(48, 257, 16), *range(288, 513, 32))
    high = (*range(576, 1025, 64), *range(1280, 4097, 256), *range(4608, most + 1, 512))
    return tuple(size for size in (*low, *high) if size <= most)


def mem_fraction_static(card: CardMemory, chunk: int, graph: int, captured: int) -> float:
    """The share of the memory for weights and KV cache.

    `chunk`: tokens of one prefill pass; `graph`: sequences of the largest decode graph;
    `captured`: the number of prefill graphs.
    """
    if card.version < GRAPH_TABLES:
        return _fraction_by_ranks(card)
    reserved = _reserved_by_sum(card, chunk, graph, captured)
    if card.version < RESERVED_BY_SUM:
        reserved = _reserved_by_table(card)
    return round((card.mib - reserved) / max(1, card.mib), 3)


def _fraction_by_ranks(card: CardMemory) -> float:
    """The share until 0.4.7; from 0.4.6 on larger cards leave a smaller part free."""
    ranks = card.tp * (card.pp if card.version >= (0, 4, 6) else 1)
    shares = ((16, 0.79), (8, 0.81), (4, 0.85), (2, 0.87))
    share = next((share for least, share in shares if ranks >= least), 0.88)
    if card.version < (0, 4, 6):
        return share
    if card.mib > 81_920:
        share = 0.88
    if card.mib > 180_000:
        return 0.79
    if card.mib > 96 * GIB_IN_MIB:
        free = (20 if card.speculation else 18) * GIB_IN_MIB
        return min(share + 48 * GIB_IN_MIB * (1 - share) / card.mib, (card.mib - free) / card.mib)
    return share * 0.95 if card.speculation else share


def _reserved_by_table(card: CardMemory) -> float:
    """MiB that stay free, from 0.4.8 to 0.5.2."""
    ranks = card.tp * card.pp
    limits = ((35, 2.8 + ranks / 10), (90, 9.5 + ranks / 2), (160, 12 + ranks / 2))
    reserved = next((gib for most, gib in limits if card.mib < most * GIB_IN_MIB), 32.0)
    if card.speculation:
        reserved += 6 if card.speculation == "standalone" else 2
    return (reserved + (4 if card.dp > 1 else 0)) * GIB_IN_MIB


def _reserved_by_sum(card: CardMemory, chunk: int, graph: int, captured: int) -> float:
    """MiB that stay free, from 0.5.3: 1.5 a token of a prefill pass, 2 a sequence of the largest
    graph.
    """
    reserved = 512 + max(chunk, 2048) * 1.5 + graph * 2 + card.tp * card.pp / 8 * GIB_IN_MIB
    if card.dp > 1:
        reserved += graph * card.dp * (4.5 if graph > 300 else 3)
    if captured and card.version >= PREFILL_GRAPHS:
        reserved += 1.5 * GIB_IN_MIB if card.latent else 8 * captured
    if card.mib > 60 * GIB_IN_MIB:
        reserved = max(reserved, 10 * GIB_IN_MIB)
    if card.speculation and card.speculation != "ngram" and card.version < (0, 5, 14):
        draft = 2 if card.version < (0, 5, 10) else 4
        reserved += (6 if card.speculation == "standalone" else draft) * GIB_IN_MIB
    return reserved
