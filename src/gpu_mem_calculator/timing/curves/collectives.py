"""Seconds of collectives, within a node from a measured curve, between nodes from its links."""

from __future__ import annotations

from ...ledger.num import ceil_div, choose, larger, smaller
from .grid import Size, Value
from .machine import Machine

# Kind: how often the whole buffer crosses each link of a ring, and the hops of a ring of n ranks
# over n - 1. Sanders et al. and NCCL's docs/PERFORMANCE.md of nccl-tests: bus bandwidth.
RINGS = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0}
KINDS = (*RINGS, "all_to_all", "send")


def collective_seconds(
    machine: Machine, kind: str, num_bytes: Size, ranks: Size, stride: Size = 1
) -> Value:
    """Seconds of a collective over `ranks` GPUs that are `stride` GPUs apart; 0 for one rank.

    `num_bytes`: of the whole tensor that is reduced, gathered or scattered; of what one rank sends
    in total (all_to_all, its own part included) or to its neighbour (send).
    Ranks are numbered node by node, and every GPU has its own port to the network. So of a group
    `domain / stride` ranks share a node, and the node's other groups leave them their own ports.
    """
    if kind == "send":
        return _send(machine, num_bytes, stride)
    local = smaller(ranks, larger(machine.domain // stride, 1))
    nodes = ceil_div(ranks, local)
    within = machine.collectives[kind].at(local, num_bytes)
    between = _between(machine, kind, num_bytes, ranks, local, nodes)
    return choose(nodes > 1, larger(within, between), within)


def _between(
    machine: Machine, kind: str, num_bytes: Size, ranks: Size, local: Size, nodes: Size
) -> Value:
    """Seconds on the network: the bytes that leave a node by its ports, and a hop for each node."""
    rate = machine.between.bytes_per_second * machine.network_share
    hops = (nodes - 1) * machine.between.seconds
    if kind == "all_to_all":
        return num_bytes * ((ranks - local) / ranks) / rate + hops
    crossings = RINGS[kind]
    return num_bytes * ((ranks - 1) / ranks) * crossings / (rate * local) + hops * crossings


def _send(machine: Machine, num_bytes: Size, stride: Size) -> Value:
    """Seconds to send a tensor to the rank `stride` GPUs on."""
    # All-to-all of two ranks: each keeps one half and sends the other.
    within = machine.collectives["all_to_all"].at(2, num_bytes * 2)
    rate = machine.between.bytes_per_second * machine.network_share
    between = num_bytes / rate + machine.between.seconds
    return choose(stride < machine.domain, within, between)
