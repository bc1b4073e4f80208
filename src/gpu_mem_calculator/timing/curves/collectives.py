"""Seconds of collectives, within a node from a measured curve, between nodes from its links."""

from __future__ import annotations

from msgspec import Struct

from ...ledger.num import ceil_div, choose, larger, smaller
from .grid import Size, Value, is_array
from .machine import Machine

# By kind: how often the whole tensor crosses each link of a ring (nccl-tests, doc/PERFORMANCE.md).
RINGS = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0}
KINDS = (*RINGS, "all_to_all", "send")


class Protocol(Struct, frozen=True, kw_only=True):
    """How NCCL sends: seconds to begin, of a hop on NVLink and on the network; part of the rate."""

    start: float
    near: float
    far: float
    share: float


MICRO = 1e-6


def _protocols(*rows: tuple[float, float, float, float]) -> tuple[Protocol, ...]:
    """Protocols with their seconds in microseconds."""
    return tuple(
        Protocol(start=start * MICRO, near=near * MICRO, far=far * MICRO, share=share)
        for start, near, far, share in rows
    )


# NCCL 2.30, src/graph/tuning.cc: baseLatencies, hwLatencies and the factors of busBw in
# ncclTopoTuneModel, for Simple, LL128 and LL. NCCL takes the fastest by the same sum.
RING = _protocols((8.4, 3.4, 14.0, 1.0), (14.0, 1.9, 4.0, 0.92), (6.6, 1.0, 2.7, 0.5))
TREE = _protocols((8.4, 4.0, 14.0, 0.92), (14.0, 1.25, 8.5, 0.8625), (6.8, 0.6, 5.0, 0.2421))
INFINIBAND = 2.7 * MICRO  # the table's hop on the network; slower links add their own


def collective_seconds(
    machine: Machine, kind: str, num_bytes: Size, ranks: Size, stride: Size = 1
) -> Value:
    """Seconds of a collective over `ranks` GPUs that are `stride` GPUs apart; 0 for one rank.

    `num_bytes`: of the whole tensor that is reduced, gathered or scattered; of what one rank sends
    in total (all_to_all, its own part included) or to its neighbour in a ring of all ranks (send).
    Ranks are numbered node by node, and the GPUs of a node share its ports evenly. So of a group
    `domain / stride` ranks share a node, and the node's other groups leave them their share of the
    ports. A collective that leaves the node is at least as slow as one of as many ranks within.
    """
    if kind == "send":
        return _send(machine, num_bytes, ranks, stride)
    local = smaller(ranks, larger(machine.domain // stride, 1))
    nodes = ceil_div(ranks, local)
    within = machine.collectives[kind].at(smaller(ranks, machine.domain), num_bytes)
    if kind == "all_to_all":
        between = _all_to_all(machine, num_bytes, ranks, local, nodes)
    else:
        between = _ring(machine, kind, num_bytes, ranks, local, nodes)
        if kind == "all_reduce":
            between = smaller(between, _tree(machine, num_bytes, local, nodes))
    return choose(nodes > 1, larger(within, between), within)


def _rate(machine: Machine) -> float:
    """Bytes a second that a collective gets from a GPU's port."""
    return machine.between.bytes_per_second * machine.network_share


def _slower(machine: Machine) -> float:
    """Seconds of a hop beyond those of InfiniBand."""
    return max(0.0, machine.between.seconds - INFINIBAND)


def _ring(
    machine: Machine, kind: str, num_bytes: Size, ranks: Size, local: Size, nodes: Size
) -> Value:
    """A ring through all ranks: each port carries its part of the tensor, n - 1 hops in a row."""
    turns = RINGS[kind]
    seconds = num_bytes * ((ranks - 1) / ranks) * turns / (local * _rate(machine))
    near, far = (ranks - nodes) * turns, (nodes - 1) * turns
    return _fastest(machine, RING, seconds, near, far)


def _tree(machine: Machine, num_bytes: Size, local: Size, nodes: Size) -> Value:
    """Two trees over nodes, a chain within each: the tensor goes up and down once."""
    seconds = num_bytes * 2.0 / (local * _rate(machine))
    return _fastest(machine, TREE, seconds, (local - 1) * 2.0, _log2(nodes) * 2.0)


def _fastest(
    machine: Machine, protocols: tuple[Protocol, ...], seconds: Value, near: Value, far: Value
) -> Value:
    slower = _slower(machine)
    times = [
        seconds / one.share + near * one.near + far * (one.far + slower) + one.start
        for one in protocols
    ]
    return smaller(smaller(times[0], times[1]), times[2])


def _log2(number: Size) -> Size:
    """The logarithm to base 2, rounded down."""
    if is_array(number):
        import numpy

        return numpy.frexp(number)[1] - 1
    return int(number).bit_length() - 1


def _all_to_all(machine: Machine, num_bytes: Size, ranks: Size, local: Size, nodes: Size) -> Value:
    """Each rank sends the parts of other nodes through its own port, one node after another."""
    simple = RING[0]
    hops = (nodes - 1) * _slower(machine) + simple.far + simple.start
    return num_bytes * ((ranks - local) / ranks) / _rate(machine) + hops


def _send(machine: Machine, num_bytes: Size, ranks: Size, stride: Size) -> Value:
    """Seconds in which each of `ranks` GPUs sends a tensor to the one `stride` GPUs on.

    All wait for the slowest hop: one leaves the node unless the whole ring is in it. The last
    `stride` GPUs of a node send to the next one, and share its ports.
    """
    # All-to-all of two ranks: each keeps one half and sends the other.
    within = machine.collectives["all_to_all"].at(2, num_bytes * 2)
    simple = RING[0]
    leaving = smaller(stride, machine.domain)
    rate = smaller(
        machine.between.port, machine.between.bytes_per_second * machine.domain / leaving
    )
    between = num_bytes / (rate * machine.network_share)
    between = larger(within, between + (simple.start + simple.far + _slower(machine)))
    sent = choose(ranks * stride <= machine.domain, within, between)
    return choose(ranks > 1, sent, 0.0 * sent)
