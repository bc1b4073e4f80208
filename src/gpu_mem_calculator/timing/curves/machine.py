"""A GPU, its links, and the measured speed of its kernels and collectives."""

from __future__ import annotations

from msgspec import Struct

from .grid import Grid
from .matmul_curve import MatmulCurve


class Link(Struct, frozen=True, kw_only=True):
    """What joins GPUs: bytes a second of one GPU in one direction, and the seconds of one hop.

    - port: bytes a second of one port of a network, of which a node may have fewer than GPUs
    """

    title: str
    bytes_per_second: float
    seconds: float
    port: float


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
