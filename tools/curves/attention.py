"""The grid of attention: TFLOP/s of forward over head size, keys and attention heads."""

from __future__ import annotations

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

Key = tuple[int, int, int]


def attention_file(wheel: Path, card: str) -> dict[str, Any]:
    """The curve of a card: causal, bf16, without a window, as many queries as keys."""
    source = CARDS[card]
    path = f"{source.folder}/attention/{source.attention}/context_attention_perf.parquet"
    columns = table(wheel, path)
    rows = _rows(columns)
    head_dims = [dim for dim in HEAD_DIMS if any(key[0] == dim for key in rows)]
    values = [
        digits(_flops(rows, (dim, keys, heads)) / 1e12)
        for dim in head_dims
        for keys in KEYS
        for heads in HEADS
    ]
    if len(head_dims) == 1:  # measured at one head size
        head_dims, values = [head_dims[0], 2 * head_dims[0]], values * 2
    grid = Grid([Axis(axis, continues=False) for axis in (head_dims, KEYS, HEADS)], values)
    pairs = [
        (_work(key) / grid.at(*key) / 1e12, seconds)
        for key, all_seconds in rows.items()
        if key[0] in head_dims and KEYS[0] <= key[1]
        for seconds in all_seconds
    ]
    return {
        **heading(card, path),
        "unit": "TFLOP/s of causal attention, half of the products counted; forward",
        "kernels": sorted(set(columns["kernel_source"])),
        "axes": {"head_dim": head_dims, "keys": KEYS, "heads": HEADS},
        "spread": spread(pairs),
        "values": values,
    }


def _rows(columns: dict[str, list[Any]]) -> dict[Key, list[float]]:
    """Seconds by head size, keys and attention heads times sequences."""
    names = ("head_dim", "isl", "batch_size", "num_heads", "num_key_value_heads", "latency")
    windows = columns.get("window_size") or [0] * len(columns["isl"])
    dtypes = zip(columns["attn_dtype"], columns["kv_cache_dtype"], windows, strict=True)
    rows: dict[Key, list[float]] = {}
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


def _flops(rows: dict[Key, list[float]], key: Key) -> float:
    """FLOP/s at a point; where it is missing, of the nearest one with fewer attention heads."""
    while key not in rows:
        at = HEADS.index(key[2])
        key = (key[0], key[1], HEADS[at - 1])
    return _work(key) / median(rows[key])
