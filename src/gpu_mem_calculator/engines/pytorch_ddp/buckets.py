"""DistributedDataParallel: what it sends when it wraps a model, and its buckets of gradients."""

from __future__ import annotations

from itertools import pairwise

from ...autograd.events import BlockEvents, EventRecorder
from ...ledger.ledger import BUCKETS, OLD_BUCKETS, Ledger
from ...ledger.units import MIB
from ...run.phases import FORWARD
from ...step.stream_writer import Phase, StreamWriter

SENT_BYTES = 250 * MIB  # nn/parallel/distributed.py broadcast_bucket_size
FIRST_BYTES, BUCKET_BYTES = MIB, 25 * MIB  # of the first bucket, of the others


def filled(sizes: list[int], *limits: int) -> list[list[int]]:
    """Tensors put together in order; a bucket is closed when it has reached its limit.

    torch 2.11 csrc/distributed/c10d/reducer.cpp compute_bucket_assignment_by_size; the last limit
    holds for all that follow.
    """
    found: list[list[int]] = [[]]
    for size in sizes:
        if sum(found[-1]) >= limits[min(len(found), len(limits)) - 1]:
            found.append([])
        found[-1].append(size)
    return found


def buckets(sizes: list[int]) -> list[int]:
    """Bytes of the buckets from the second forward on, in the order backward fills them."""
    return [sum(one) for one in filled(sizes[::-1], FIRST_BYTES, BUCKET_BYTES)]


def sent(sizes: list[int]) -> list[int]:
    """Bytes of the flat copies that parameters are sent in; one alone is sent as it is."""
    return [sum(one) if len(one) > 1 else 0 for one in filled(sizes, SENT_BYTES)]


def sent_script(sizes: list[int]) -> BlockEvents:
    """Parameters on their way to the other ranks, two flat copies at a time.

    torch 2.11 csrc/distributed/c10d/comm.cpp broadcast_coalesced.
    """
    reel = EventRecorder()
    flying: list[int] = []
    for size in sent(sizes):
        flying.append(reel.make(size))
        if len(flying) == 2:
            reel.free(flying.pop(0))
    reel.over(flying)
    return BlockEvents(sizes=tuple(reel.sizes), entry=-1, exit=-1, forward=tuple(reel.events))


def sent_bytes(sizes: list[int]) -> int:
    """The most that is on its way at once."""
    chunks = [0, *sent(sizes)]
    return max(a + b for a, b in pairwise(chunks))


class BucketStreamWriter(StreamWriter):
    """All gradients are one bucket until the second forward, which makes the real ones.

    torch 2.11 nn/parallel/distributed.py _ddp_init_helper: no limit while the order in which
    gradients come is not known.
    """

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self.forwards = 0

    def begin(self, phase: Phase) -> None:
        """Another phase."""
        self.forwards += phase.kind == FORWARD
        if self.forwards == 2 and phase.kind == FORWARD:
            roles = {entry.role: index for index, entry in enumerate(self.entries)}
            index, old = roles[BUCKETS], roles.get(OLD_BUCKETS, -1)
            if index in self.held and old >= 0 and self.first:
                self.held[old] = self.held.pop(index)
            self.keep(index, 0)
            if self.entries[index].bytes:
                self.keep(index, 1)

    def keep(self, index: int, copies: int) -> None:
        """As any writer does, but for the first bucket, which is one."""
        entry = self.entries[index]
        if entry.role == BUCKETS and copies and index not in self.held and self.forwards < 2:
            self.held[index] = [[self.make(int(entry.bytes))]]
        super().keep(index, copies)

    def known_as(self, name: str) -> str:
        """Only the second micro-batch finds the first one's buckets."""
        return super().known_as(name) if self.forwards == 2 else name
