"""The stream of an FSDP2 rank: a unit's last gradient stays while its gradients are reduced."""

from __future__ import annotations

from collections.abc import Hashable

from ....ledger.ledger import LAST_GRADIENT
from ...step.cycles import PhaseInstants
from ...step.stream_writer import StreamWriter

EMBEDDING = "embedding.backward"


class UnitStreamWriter(StreamWriter):
    """Writes what any writer does, and keeps a unit's last gradient as it is when the others are
    freed.
    """

    def sign(self, phase: PhaseInstants, place: int) -> Hashable:
        """The embedding's backward has no equal."""
        return None if phase.names[place].endswith(EMBEDDING) else super().sign(phase, place)

    def visit(self, name: str) -> None:
        """Go to an instant; the last gradient is one of those that the blocks have made."""
        waiting = self.waiting.get(name, [])
        table = self.alive_at(name) if waiting else {}
        for index in [i for i in self.with_role[LAST_GRADIENT] if i in table]:
            if index not in self.held:
                size = int(self.entries[index].bytes)
                last = [t for t in waiting if self.sizes[t] == size][:1]
                if last:
                    waiting.remove(last[0])
                    self.held[index] = [last]
        if name.endswith(EMBEDDING) and self.back >= 0 and not self.embeds:
            self.free((self.back,))  # also where gradients wait for the last micro-batch
            self.back = -1
        super().visit(name)
