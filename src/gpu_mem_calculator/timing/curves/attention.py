"""Seconds of attention kernels that do not store the scores."""

from __future__ import annotations

from ...ledger.num import smaller
from .grid import Size, Value
from .machine import Machine


def attention_seconds(
    machine: Machine,
    *,
    batch: Size,
    heads: Size,
    head_dim: int,
    queries: Size,
    keys: Size,
    causal: bool,
    backward: bool = False,
    kernel: str = "sdpa",
) -> Value:
    """Seconds of attention of one layer, forward, or backward alone.

    Where attention is causal, `queries` are the last of `keys`; of more queries than keys each
    attends to a window of the last `keys`. The curve is that of the arithmetic: keys and values are
    read from the L2 cache. It is measured with as many queries as keys. A kernel with fewer has
    fewer blocks of queries to run in parallel, like one with fewer attention heads.
    `kernel`: "sdpa" is what torch chooses, "flash" the package flash-attn 2, "server" the curve.
    """
    pairs = queries * keys * 1.0
    if causal:  # without the triangle of keys that come after a query, or before the first one
        corner = smaller(queries, keys)
        pairs = pairs - corner * corner * 0.5
    flops = pairs * (batch * heads) * (4.0 * head_dim)
    parallel = batch * heads * queries / keys
    seconds = flops / machine.attention.at(head_dim, keys, parallel)
    if kernel == "server":
        return seconds
    speed = machine.attention_kernels[kernel]
    seconds = seconds * speed.forward.at(head_dim, keys)
    return seconds * speed.backward.at(head_dim, keys) if backward else seconds
