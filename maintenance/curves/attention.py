"""The grid of attention: TFLOP/s of forward over head size, keys and attention heads."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

from gpu_mem_calculator.timing.curves.grid import Axis, Grid

from .spread import digits, spread
from .wheel import CARDS, heading, table

HEAD_DIMS = (64, 128, 256)
KEYS = (128, 256, 512, 1024, 2048, 4096, 8192, 16384)
HEADS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096)  # attention heads times sequences
# The rows include the write to the KV cache of a server. With four or more query heads for each KV
# head it is small, so these rows alone make the curve.
GROUP = 4

MEASURED = 128  # the head size that every card has
AXES = (HEAD_DIMS, KEYS, HEADS)

Key = tuple[int, int, int]
Rows = dict[Key, list[float]]


def attention_file(wheel: Path, card: str) -> dict[str, Any]:
    """The curve of a card: causal, bf16, without a window, as many queries as keys."""
    source = CARDS[card]
    path = attention_path(card)
    columns = table(wheel, path)
    rows = attention_rows(columns)
    others = attention_rows(table(wheel, attention_path(source.like))) if source.like else {}
    values = [digits(_flops(rows, others, key) / 1e12) for key in product(*AXES)]
    grid = Grid([Axis(axis, continues=False) for axis in AXES], values)
    pairs = [
        (_work(key) / grid.at(*key) / 1e12, seconds)
        for key, all_seconds in rows.items()
        if key[0] in HEAD_DIMS and KEYS[0] <= key[1]
        for seconds in all_seconds
    ]
    return {
        **heading(card, path),
        **({"like": f"{source.like}: head sizes other than {MEASURED}"} if others else {}),
        "unit": "TFLOP/s of causal attention, half of the products counted; forward",
        "kernels": sorted(set(columns["kernel_source"])),
        "axes": {"head_dim": HEAD_DIMS, "keys": KEYS, "heads": HEADS},
        "spread": spread(pairs),
        "values": values,
    }


def attention_path(card: str) -> str:
    """The table of a card's prefill attention."""
    source = CARDS[card]
    return f"{source.folder}/attention/{source.attention}/context_attention_perf.parquet"


def attention_rows(columns: dict[str, list[Any]]) -> Rows:
    """Seconds by head size, keys and attention heads times sequences."""
    names = ("head_dim", "isl", "batch_size", "num_heads", "num_key_value_heads", "latency")
    windows = columns.get("window_size") or [0] * len(columns["isl"])
    dtypes = zip(columns["attn_dtype"], columns["kv_cache_dtype"], windows, strict=True)
    rows: Rows = {}
    for kind, values in zip(dtypes, zip(*(columns[n] for n in names), strict=True), strict=True):
        dim, keys, batch, heads, kv_heads, milliseconds = values
        small = heads < GROUP or heads >= GROUP * kv_heads
        if kind == ("bfloat16", "bfloat16", 0) and small:
            rows.setdefault((dim, keys, batch * heads), []).append(milliseconds / 1000)
    return rows


def _work(key: Key) -> float:
    """FLOPs of forward."""
    dim, keys, heads = key
    return 2.0 * dim * keys * keys * heads


def _flops(rows: Rows, others: Rows, key: Key) -> float:
    """FLOP/s at a point; at a head size that is missing, by the ratio of another card."""
    if any(key[0] == other[0] for other in rows):
        return _nearest(rows, key)
    base = (MEASURED, *key[1:])
    return _nearest(rows, base) * _nearest(others, key) / _nearest(others, base)


def _nearest(rows: Rows, key: Key) -> float:
    """FLOP/s at a point; where it is missing, of the nearest one with fewer attention heads."""
    while key not in rows:
        key = (*key[:2], HEADS[HEADS.index(key[2]) - 1])
    return _work(key) / median(rows[key])
