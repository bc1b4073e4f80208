"""The stream of a DDP rank: its gradient buckets, which are rebuilt in the second forward."""

from __future__ import annotations

from collections.abc import Sequence

from ....ledger.ledger import BUCKETS, OLD_BUCKETS, Ledger
from ....ledger.num import EMPTY, Bytes, sized
from ....ledger.units import MIB
from ....run.phases import FORWARD
from ...step.broadcast import fill_buckets
from ...step.stream_phases import Phase
from ...step.stream_writer import StreamWriter

FIRST_BYTES, BUCKET_BYTES = MIB, 25 * MIB  # limits of the first bucket, of the others


def gradient_buckets(sizes: Sequence[Bytes]) -> list[Bytes]:
    """Bytes of the buckets from the second forward on. `sizes`: of the gradients, in the order in
    which the first backward has made them.
    """
    return [sum(bucket, EMPTY) for bucket in fill_buckets(sizes, FIRST_BYTES, BUCKET_BYTES)]


class BucketStreamWriter(StreamWriter):
    """Writes one bucket for all gradients until the second forward, then the real buckets.

    torch 2.11 nn/parallel/distributed.py _ddp_init_helper: no limit while the order in which
    gradients come is not known.
    """

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self.forwards = 0
        self.made: list[int] = []  # bytes of each gradient, in the order of the first backward

    def begin(self, phase: Phase) -> None:
        """Count the forwards; the second one allocates the real buckets."""
        self.forwards += phase.kind == FORWARD
        if self.forwards == 2 and phase.kind == FORWARD:
            roles = {entry.role: index for index, entry in enumerate(self.entries)}
            index, old = roles[BUCKETS], roles.get(OLD_BUCKETS, -1)
            if index in self.held and old >= 0 and self.first:
                self.held[old] = self.held.pop(index)
            self.keep(index, 0)
            size, made = int(self.entries[index].bytes), self.made or self._gradient_bytes()
            if size and sum(made) == size:
                buckets = gradient_buckets([sized(one, 8) for one in made])
                self.held[index] = [[self.make(int(one)) for one in buckets]]
            elif size:
                self.keep(index, 1)

    def zero_grad(self) -> None:
        """As any writer does; the first step's gradients are in the order of their buckets."""
        self.made = self.made or self._gradient_bytes()
        super().zero_grad()

    def _gradient_bytes(self) -> list[int]:
        return [self.sizes[tensor] for tensor in self.grads]

    def keep(self, index: int, copies: int) -> None:
        """As any writer does; until the second forward the buckets are one tensor."""
        entry = self.entries[index]
        if entry.role == BUCKETS and copies and index not in self.held and self.forwards < 2:
            self.held[index] = [[self.make(int(entry.bytes))]]
        super().keep(index, copies)

    def known_as(self, name: str) -> str:
        """The name of an instant in the first step: only its second micro-batch, in which the
        first one's buckets are still alive, has instants of the first step.
        """
        return super().known_as(name) if self.forwards == 2 else name
