"""A GPU, its links, and the measured speed of its kernels and collectives.

The curve of matrix products is a grid of seconds, and waves of tiles where they are visible.
"""

from __future__ import annotations

from msgspec import Struct

from ...ledger.num import ceil_div
from .grid import Grid, Size, Value


class Link(Struct, frozen=True, kw_only=True):
    """What joins GPUs: bytes a second of one GPU in one direction, and the seconds of one hop.

    - port: bytes a second of one port of a network, of which a node may have fewer than GPUs
    """

    title: str
    bytes_per_second: float
    seconds: float
    port: float


def waves(tile: tuple[int, int] | None, multiprocessors: int, m: Size, n: Size) -> Value:
    """Part of the result's tiles that the multiprocessors compute, over the part that is needed.

    Each multiprocessor computes one tile at a time, so the last wave of tiles takes as long as a
    whole one.
    """
    if tile is None:
        return 1.0
    tiles = ceil_div(m, tile[0]) * ceil_div(n, tile[1])
    computed = ceil_div(tiles, multiprocessors) * (multiprocessors * tile[0] * tile[1])
    return computed / (m * n)


class MatmulCurve(Struct, frozen=True, kw_only=True, eq=False):
    """Seconds over rows, columns and the summed dimension.

    - tile: rows and columns of a tile, where waves of tiles are visible (A100); the grid has the
      seconds over `waves`
    """

    grid: Grid
    tile: tuple[int, int] | None
    multiprocessors: int

    def at(self, m: Size, n: Size, k: Size) -> Value:
        """Seconds of one product."""
        seconds = self.grid.at(m, n, k)
        if self.tile is None:
            return seconds
        return seconds * waves(self.tile, self.multiprocessors, m, n)


class AttentionKernel(Struct, frozen=True, kw_only=True, eq=False):
    """A kernel of training beside the curve, over head size and keys.

    - forward: its seconds over those of the curve
    - backward: seconds of backward over seconds of its own forward
    """

    forward: Grid
    backward: Grid


class Machine(Struct, frozen=True, kw_only=True, eq=False):
    """The GPUs of a run, with the curves that their kernels and collectives follow.

    - capability: the card's compute capability; "" where it has none
    - peak: dense FLOP/s by dtype, as on the data sheet
    - domain: GPUs that `within` joins: those of a node, or of a rack that is one NVLink domain
    - within, between: the link inside a domain, and the network between domains
    - network_share: the part of the network's line rate that a collective reaches
    - matmul: seconds of one matrix product by dtype, over rows, columns and the summed dimension
    - attention: FLOP/s of attention's forward kernel over head size, keys and attention heads
    - attention_kernels: by name, how kernels of training differ from that curve
    - collectives: seconds by kind, over ranks and bytes
    - sources: where each curve comes from
    - assumed: what was assumed because it is not known for this card
    """

    card: str
    capability: str = ""
    peak: dict[str, float]
    memory_bytes_per_second: float
    multiprocessors: int
    gpus_per_node: int
    domain: int
    within: Link
    between: Link
    network_share: float
    matmul: dict[str, MatmulCurve]
    attention: Grid
    attention_kernels: dict[str, AttentionKernel]
    collectives: dict[str, Grid]
    sources: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
