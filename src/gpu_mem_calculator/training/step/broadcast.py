"""Flat copies in which torch broadcasts a module's parameters before they are trained."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from ...ledger.num import EMPTY, Bytes
from ...ledger.units import MIB
from ...pytorch.autograd.events import BlockEvents, EventRecorder

# nn/parallel/distributed.py broadcast_bucket_size, fsdp/_init_utils.py PARAM_BROADCAST_BUCKET_SIZE
BROADCAST_BYTES = 250 * MIB


def fill_buckets(sizes: Sequence[Bytes], *limits: int) -> list[list[Bytes]]:
    """The tensors of each bucket, in order; a bucket is closed when it has reached its limit.

    torch 2.11 csrc/distributed/c10d/reducer.cpp compute_bucket_assignment_by_size. The last limit
    applies to all further buckets.
    """
    buckets: list[list[Bytes]] = [[]]
    for size in sizes:
        if sum(buckets[-1]) >= limits[min(len(buckets), len(limits)) - 1]:
            buckets.append([])
        buckets[-1].append(size)
    return buckets


def broadcast_buffers(sizes: list[Bytes]) -> list[Bytes]:
    """Bytes of the flat copies in which parameters are broadcast; 0 where a parameter is alone in
    its copy, because it is sent without one.
    """
    chunks = fill_buckets(sizes, BROADCAST_BYTES)
    return [sum(chunk, EMPTY) if len(chunk) > 1 else EMPTY for chunk in chunks]


def broadcast_events(sizes: list[Bytes]) -> BlockEvents:
    """Allocations and frees while parameters are broadcast, two flat copies at a time.

    torch 2.11 csrc/distributed/c10d/comm.cpp broadcast_coalesced.
    """
    recorder = EventRecorder()
    in_flight: list[int] = []
    for size in broadcast_buffers(sizes):
        in_flight.append(recorder.make(size))
        if len(in_flight) == 2:
            recorder.free(in_flight.pop(0))
    recorder.over(in_flight)
    return BlockEvents(
        sizes=tuple(recorder.sizes), entry=-1, exit=-1, forward=tuple(recorder.events)
    )


def broadcast_bytes(sizes: list[Bytes]) -> Bytes:
    """Bytes of the two consecutive flat copies that are largest together."""
    return max(a + b for a, b in pairwise([EMPTY, *broadcast_buffers(sizes)]))
