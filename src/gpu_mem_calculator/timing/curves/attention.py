"""Seconds of attention kernels that do not store the scores."""

from __future__ import annotations

from msgspec import Struct

from .grid import Size, Value
from .machine import Machine


class KernelSpeed(Struct, frozen=True, kw_only=True):
    """How a kernel compares with the curve of forward.

    - forward: its seconds over those of the curve
    - backward: seconds of backward over seconds of its own forward
    """

    forward: float
    backward: float
    source: str


# Backward computes five products of matrices where forward computes two.
FIVE_OF_TWO = (
    "FlashAttention-2 (Dao, 2023), section 4.1: backward has 2.5 times the FLOPs of forward"
)
KERNELS = {
    "flash": KernelSpeed(forward=1.0, backward=2.5, source=FIVE_OF_TWO),
    "sdpa": KernelSpeed(forward=1.0, backward=2.5, source=FIVE_OF_TWO),
}
# By kernel and compute capability, where the card's curve is that of another kernel.
ON_CHIP = {
    ("flash", "9.0"): KernelSpeed(
        forward=1.75,
        backward=2.5,
        source="flash-attn 2; FlashAttention-3 (Shah et al., 2024): 1.5 to 2.0 times faster",
    )
}


def attention_seconds(
    machine: Machine,
    *,
    batch: Size,
    heads: Size,
    kv_heads: Size,
    head_dim: int,
    queries: Size,
    keys: Size,
    causal: bool,
    backward: bool = False,
    kernel: str = "sdpa",
) -> Value:
    """Seconds of attention of one layer, forward, or backward alone.

    `queries` are the last of `keys` where attention is causal. The curve is measured with as many
    queries as keys. A kernel with fewer has fewer blocks of queries to run in parallel, like one
    with fewer attention heads.
    """
    del kv_heads  # the curve is that of the arithmetic; keys and values are read from the L2 cache
    pairs = queries * keys - queries * queries * 0.5 if causal else queries * keys * 1.0
    flops = pairs * (batch * heads) * (4.0 * head_dim)
    parallel = batch * heads * queries / keys
    seconds = flops / machine.attention.at(head_dim, keys, parallel)
    row = ON_CHIP.get((kernel, machine.capability), KERNELS[kernel])
    return seconds * (row.forward * row.backward if backward else row.forward)
