"""Every byte one rank holds over a step, when it is alive, and who says so."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct

from .num import Num, larger
from .source import Source

# What a byte is for. PyTorch's memory tracker uses the same words, so ledgers line up.
PARAM, GRAD, OPTIM, ACT, TEMP, COMM, RUNTIME = (
    "param", "grad", "optim", "act", "temp", "comm", "runtime",
)  # fmt: skip
KINDS = (PARAM, GRAD, OPTIM, ACT, TEMP, COMM, RUNTIME)

GPU, CPU, NVME = "gpu", "cpu", "nvme"


class Entry(Struct, frozen=True, kw_only=True):
    """Bytes on one rank, how many copies are alive at each instant, and the source."""

    name: str
    kind: str
    bytes: Num
    live: Mapping[str, Num]
    source: Source
    place: str = GPU
    parts: tuple[tuple[str, Num], ...] = ()  # what `bytes` is made of, where that is known

    def at(self, instant: str) -> Num:
        """Bytes alive at an instant."""
        copies = self.live.get(instant)
        return 0 if copies is None else self.bytes * copies


class Instant(Struct, frozen=True, kw_only=True):
    """A named moment of a step; `present` is 0 where a run does not have it."""

    name: str
    phase: str  # startup | forward | backward | optimizer
    title: str = ""
    present: Num = 1


class Ledger(Struct, frozen=True):
    """All entries over all instants of one rank."""

    instants: tuple[Instant, ...]
    entries: tuple[Entry, ...]

    def at(self, instant: Instant, place: str = GPU) -> Num:
        """Bytes alive at an instant in one place."""
        total: Num = 0
        name = instant.name
        for entry in self.entries:
            if entry.place == place:
                copies = entry.live.get(name)
                if copies is not None:
                    total = total + entry.bytes * copies
        return total * instant.present

    def peak(self, place: str = GPU, phases: Iterable[str] | None = None) -> Num:
        """The highest instant's bytes."""
        best: Num = 0
        for instant in self.instants:
            if phases is None or instant.phase in phases:
                best = larger(best, self.at(instant, place))
        return best

    def peak_instant(self, place: str = GPU, phases: Iterable[str] | None = None) -> Instant:
        """The first instant at which the peak is reached (one run, no arrays)."""
        wanted = [i for i in self.instants if phases is None or i.phase in phases]
        return max(wanted, key=lambda i: int(self.at(i, place)))

    def parts(self, instant: Instant, place: str = GPU) -> dict[str, Num]:
        """Bytes by kind at an instant."""
        found: dict[str, Num] = dict.fromkeys(KINDS, 0)
        for entry in self.entries:
            if entry.place == place and instant.name in entry.live:
                size = entry.bytes * entry.live[instant.name] * instant.present
                found[entry.kind] = found[entry.kind] + size
        return found
