"""NCCL's memory on each GPU: its kernels once, and the buffers of every communicator.

On one H200 these were measured: groups of one rank, and of several ranks that each count as a node.
Buffers between two GPUs of one node are derived from NCCL's source and agree with what others
report. Line numbers refer to NCCL 2.28.9, which comes with torch 2.11+cu130.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from msgspec import Struct

from ...ledger.mesh import Mesh
from ...ledger.num import power_of_two, round_up
from ...ledger.source import measured
from ...ledger.units import KIB, MIB
from ..served import NamedBytes

PAGE = 2 * MIB  # the smallest CUDA allocation (include/alloc.h ncclCuMemAlloc)
# The buffers of one connection, one for each of NCCL's protocols (init.cc:697-699).
LL, LL128, SIMPLE = 512 * KIB, 4800 * KIB, 4 * MIB
# A connection inside a node: flags on the sender, and all three buffers on the receiver
# (transport/p2p.cc:377, :445; a reading receiver has SIMPLE on the sender; the sum is the same).
PEER_BYTES: int = PAGE + round_up(LL + LL128 + SIMPLE + 8 * KIB, PAGE)
# Through a network card that reads the GPU: a sender's LL is on the host (transport/net.cc:880).
NET_BYTES: int = round_up(LL128 + SIMPLE, PAGE) + round_up(LL + LL128 + SIMPLE, PAGE)
SHARED_STEPS, NET_CHUNK = 16, 128 * KIB  # of send and receive through the network (net.cc:628)
NET_CHANNELS = 2  # of send and receive with each rank, where one is on another node (paths.cc:838)
# GPUs that are sold with NVLink to all others of their node; those whose switch can sum, with its
# channels (transport/nvls.cc:148-150); steps and bytes of a step (include/device.h:24).
NVLINK, SWITCH = ("8.0", "9.0", "10.0"), {"9.0": 16, "10.0": 24}
SWITCH_STEPS, SWITCH_CHUNK = 8, 128 * KIB

STREAMS_BYTES = 70 * MIB
LIBRARY_BYTES, SEND_BYTES = 286 * MIB, 58 * MIB
LIBRARY_SOURCE = measured(
    "NCCL's kernels on an H200: 100 MiB with the first communicator, 186 with the first kernel, "
    "58 with the first send; the same in 4 of 4 settings (2 and 4 ranks, 2 and 8 channels)"
)
GROUPS_SOURCE = measured(
    "tables of 4 MiB and 6 a channel (1, 2, 8 and 64 channels on an H200); connections from "
    "NCCL 2.28.9's source: 12 MiB a channel inside a node, 20 through the network"
)


class JoinedRanks(Protocol):
    """What of a run decides its communicators."""

    @property
    def mesh(self) -> Mesh:
        """The ranks along each axis."""

    @property
    def gpus_per_node(self) -> int:
        """GPUs of a node."""

    @property
    def compute_capability(self) -> str:
        """The cards' compute capability."""

    @property
    def options(self) -> Mapping[str, Any]:
        """The engine's options: sharding_strategy and zero_stage."""


class Communicator(Struct, frozen=True):
    """The ranks of one communicator, and how many of them share a node."""

    ranks: int
    local: int

    @property
    def nodes(self) -> int:
        """How many nodes it spans."""
        return -(-self.ranks // self.local)


def num_channels(group: Communicator, *, nvlink: bool) -> int:
    """How many channels a communicator has, which depends on its topology.

    One rank has all 64, and ranks with one GPU in each node have 2 (both measured, over sockets).
    Logs of A100 and H100 nodes show 24, and 16 over several nodes with a network card for each GPU;
    2 without NVLink.
    """
    if group.ranks == 1:
        return 64
    if group.local == 1 or not nvlink:
        return 2
    return 24 if group.nodes == 1 else 16


def table_bytes(channels: int) -> int:
    """Bytes of five small tables, three of them for each channel, each in its own pages.

    init.cc:512 and :514; channel.cc:42, :45 and :56. Exact for 1, 2, 8 and 64 channels.
    """
    return PAGE * (2 + 3 * channels)


def ring_bytes(group: Communicator, channels: int, *, nvlink: bool) -> int:
    """Bytes of a ring in each channel: every rank receives from one rank and sends to one.

    transport/generic.cc:19. Without NVLink the buffers are in host RAM (shm.cc). Over several nodes
    one GPU of each node sends in a channel, and there are trees beside the ring for small sums.
    """
    if group.local == 1:
        return channels * NET_BYTES
    if not nvlink:
        return 0
    if group.nodes == 1:
        return channels * PEER_BYTES
    return 2 * channels * PEER_BYTES + channels * (NET_BYTES - PEER_BYTES) // group.local


def switch_bytes(group: Communicator, channels: int, *, sums: bool) -> int:
    """Bytes of NVLink SHARP: credits, and a table for each channel; for large sums also two buffers
    for each channel and rank.

    transport/nvls.cc:335-338 and :406; channel.cc:93. Two ranks are as fast in a ring.
    """
    if channels == 0 or group.local < 2:
        return 0
    buffers = channels * 2 * SWITCH_STEPS * SWITCH_CHUNK * group.local
    return PAGE * (1 + channels) + (buffers if sums and group.local > 2 else 0)


def group_bytes(group: Communicator, capability: str, *, sums: bool) -> int:
    """Bytes of one communicator that gathers and scatters, and with `sums` also sums."""
    nvlink = capability in NVLINK
    channels = num_channels(group, nvlink=nvlink)
    tables = table_bytes(power_of_two(channels))  # graph/paths.cc:883
    if group.ranks == 1:
        return tables
    rings = ring_bytes(group, channels, nvlink=nvlink)
    return tables + rings + switch_bytes(group, SWITCH.get(capability, 0), sums=sums)


def pairs_bytes(group: Communicator, peers: int, capability: str) -> int:
    """Bytes of one communicator that exchanges with `peers` of its ranks: pipeline stages, experts.

    enqueue.cc:2426: every channel of a peer is connected. Through the network all channels share
    one buffer for sending and one for receiving (transport/net.cc:647).
    """
    nvlink = capability in NVLINK
    channels = power_of_two(num_channels(group, nvlink=nvlink))
    total = table_bytes(channels)
    if nvlink:
        near = min(peers, group.local - 1)
        total += near * (channels if group.nodes == 1 else NET_CHANNELS) * PEER_BYTES
    if group.nodes > 1:
        total += 2 * channels * SHARED_STEPS * NET_CHUNK
    return total


def communicators(run: JoinedRanks) -> dict[str, Communicator]:
    """The communicator of each mesh axis with several ranks, innermost first: consecutive ranks are
    on one node.

    megatron-core 0.19.2 parallel_state.py, order tp-cp-ep-dp-pp; ep is a part of dp.
    """
    axes, inner = {}, 1
    for axis in ("tp", "cp", "ep", "dp", "pp"):
        ranks = int(getattr(run.mesh, axis))
        if ranks > 1:
            axes[axis] = Communicator(ranks, max(1, min(ranks, run.gpus_per_node // inner)))
        inner *= 1 if axis == "ep" else ranks
    return axes


def communicators_bytes(run: JoinedRanks) -> int:
    """Bytes of all communicators of a rank.

    Hybrid sharding has two mesh axes, and ZeRO 3 has torch's default group and a copy of it
    (deepspeed 0.19.8 utils/groups.py:734, zero/stage3.py:765). Smaller groups that Megatron-Core
    creates for norms and embeddings are left out.
    """
    strategy, stage = run.options.get("sharding_strategy"), run.options.get("zero_stage")
    sums = strategy in (None, "no_shard", "hybrid_shard") and not stage
    peers = {"pp": 2, "ep": int(run.mesh.ep) - 1}
    total = 0
    for axis, group in communicators(run).items():
        if axis in peers:
            total += pairs_bytes(group, min(peers[axis], group.ranks - 1), run.compute_capability)
            continue
        copies = 2 if axis == "dp" and (strategy == "hybrid_shard" or stage == 3) else 1
        total += copies * group_bytes(group, run.compute_capability, sums=sums)
    return total


def nccl(run: JoinedRanks, *, streams: bool) -> Iterator[NamedBytes]:
    """NCCL's part of what is outside torch: (name, bytes, source).

    `streams`: torch's pools of CUDA streams are counted elsewhere.
    """
    axes = communicators(run)
    if not axes:
        return
    library = LIBRARY_BYTES + (0 if streams else STREAMS_BYTES)
    library += SEND_BYTES if axes.keys() & {"pp", "ep"} else 0
    yield "NCCL library", library, str(LIBRARY_SOURCE)
    yield "NCCL communicators", communicators_bytes(run), str(GROUPS_SOURCE)
