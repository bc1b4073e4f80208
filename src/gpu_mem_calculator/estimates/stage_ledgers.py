"""The ledgers of a run's pipeline stages, each made when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import TYPE_CHECKING

from ..ledger.ledger import CPU, RANK_0, UNIFIED, Ledger
from ..run.phases import STARTUP

if TYPE_CHECKING:
    from ..run.run import Run
    from ..runfile.resolve.resolved_run import ResolvedRun


class StageLedgers:
    """The ledgers of `stages`; `make` makes that of one."""

    def __init__(self, stages: int, make: Callable[[int], Ledger]) -> None:
        self.stages, self._made = stages, cache(make)

    def __iter__(self) -> Iterator[Ledger]:
        return map(self._made, range(self.stages))

    def __getitem__(self, stage: int) -> Ledger:
        return self._made(stage)

    def peaks(self, phases: Iterable[str]) -> list[int]:
        """The highest instant of some phases, of each stage."""
        return [int(ledger.peak(phases=phases)) for ledger in self]

    def highest(self, stage: int) -> tuple[int, int]:
        """The highest instant of a stage, and that of its steps."""
        ledger = self[stage]
        return int(ledger.peak()), int(ledger.peak(phases=step_phases(ledger)))

    def unified_bytes(self, stage: int) -> int:
        """The most bytes of managed memory on a stage."""
        return int(self[stage].peak(UNIFIED))

    def host_bytes(self, ranks: int, phases: Iterable[str] | None = None) -> int:
        """The highest bytes on the host of a node with `ranks` ranks, of all phases or of those
        named.
        """
        highest = 0
        for ledger in self:
            every, first = ledger.heights(CPU), ledger.heights(RANK_0)
            names = (i.name for i in ledger.instants if phases is None or i.phase in phases)
            highest = max(highest, *(int(every[name]) * ranks + int(first[name]) for name in names))
        return highest


def step_phases(ledger: Ledger) -> set[str]:
    """The phases of a ledger after start-up."""
    return {i.phase for i in ledger.instants} - {STARTUP}


def ledger_of(resolved: ResolvedRun) -> Callable[[Run], Ledger]:
    """What makes the ledger of a run: its engine, and what loads the checkpoint it begins from."""
    return _resumed(resolved.engine.name) if resolved.run.resuming else resolved.engine.ledger


@cache
def _resumed(name: str) -> Callable[[Run], Ledger]:
    from ..training.engines import engine, engine_row
    from ..training.life.resuming import with_resuming  # few runs are resumed

    make, row = engine(name).ledger, engine_row(name)
    return lambda run: with_resuming(run, row, make(run))
