"""The figures that decide whether a run fits, each computed when it is asked for."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from msgspec import Struct

from ..run.phases import STARTUP
from ..runfile.resolve.resolved_run import ResolvedRun
from .fit_verdict import FITS, SHORT, UNSURE, clear_verdict, headroom_bytes, replay_verdict
from .node import NodeMemory, PhaseMemory, SharedPool, node_memory
from .stage_ledgers import StageLedgers

if TYPE_CHECKING:
    from .drawn import DrawnReserve
    from .stage_replay import StageReplay


class Figures(Struct, frozen=True, kw_only=True, dict=True):
    """A run's figures, those of its busiest stage.

    - ledgers, peaks: of each pipeline stage; peaks in bytes
    - busiest: the stage whose figures these are
    - replayed: its replay; None where only the ledger was computed
    - outside: bytes outside torch on one GPU
    - drawn: what other orders of its batches reserve, where the order is not known
    """

    resolved: ResolvedRun
    ledgers: StageLedgers
    peaks: list[int]
    busiest: int
    replayed: StageReplay | None
    outside: int
    drawn: DrawnReserve | None = None

    @property
    def cap(self) -> int:
        """Bytes that torch may take."""
        return self.resolved.hardware.memory_bytes - self.outside

    @property
    def allocated(self) -> int:
        """The peak of the steps."""
        return self.peaks[self.busiest] if self.replayed is None else self.replayed.allocated_bytes

    @property
    def needs(self) -> int | None:
        """The least bytes that torch must be able to take; None without a replay."""
        return None if self.replayed is None else max(self.replayed.needs_bytes, self._resumed)

    @property
    def margin(self) -> int | None:
        """Bytes beyond them with which the run is certain to survive; None without a replay."""
        return None if self.replayed is None else self.replayed.margin_bytes

    @property
    def card(self) -> int:
        """Bytes that a card must have."""
        needs = self.needs
        return (self.allocated if needs is None else needs) + (self.margin or 0) + self.outside

    @cached_property
    def starts(self) -> list[int]:
        """The busiest stage's bytes at each instant of start-up, by its ledger."""
        ledger = self.ledgers[self.busiest]
        return [int(ledger.at(i)) for i in ledger.instants if i.phase == STARTUP]

    @cached_property
    def verdict(self) -> str:
        """The verdict without what is not modelled."""
        if self.drawn is not None:
            return self.drawn.verdict
        if self.replayed is not None:
            if self._resumed > self.cap:
                return SHORT
            word = replay_verdict(self.replayed, self.cap)
            tight = self._resumed and self._resumed + self.replayed.margin_bytes > self.cap
            return UNSURE if word == FITS and tight else word
        highest = max(self.allocated, *self.starts, 0) + self.outside
        return clear_verdict(self.card, highest, self.resolved.hardware.memory_bytes)

    @property
    def _resumed(self) -> int:
        """What loading a checkpoint takes: streams of some engines begin after it."""
        return max(self.starts, default=0) if self.resolved.run.resuming else 0

    @property
    def headroom(self) -> int:
        """Bytes that the card has beyond what it must have."""
        word, beyond = self.verdict, self.resolved.hardware.memory_bytes - self.card
        if word == UNSURE and self.replayed is not None:
            beyond = min(beyond, -1)
        return headroom_bytes(word, beyond)

    @property
    def fit(self) -> bool:
        """Whether what is modelled fits."""
        if self.node.verdict not in (None, FITS):
            return False
        if self.replayed is None:
            return self.verdict != SHORT and self.headroom >= 0
        return self.replayed.least_card_bytes <= self.cap and self.verdict == FITS

    @cached_property
    def unified(self) -> int:
        """Bytes of paged states."""
        return self.ledgers.unified_bytes(self.busiest)

    @cached_property
    def on_card(self) -> int | None:
        """Bytes that torch reserves on the card; None without a replay, or where it does not
        survive.

        Pages of managed memory take what is left: those that find no room stay on the host, and
        cudaMalloc evicts them (CUDA C++ programming guide, unified memory, oversubscription).
        """
        if self.replayed is None:
            return None
        beside = self.replayed.reserved_under(self.cap - self.unified)
        if beside is not None or not self.unified:
            return beside
        return self.replayed.reserved_under(self.cap)

    @property
    def evicted(self) -> int:
        """Bytes of paged states that find no room on the card, and go to the host."""
        if not self.unified or not self.on_card:
            return 0
        taken = self.on_card + self.outside + self.unified
        return max(taken - self.resolved.hardware.memory_bytes, 0)

    @cached_property
    def life(self) -> list[PhaseMemory]:
        """The phases of the run, in order."""
        from .life import life  # servers have another

        return life(self)

    @cached_property
    def node(self) -> NodeMemory:
        """What the run takes of a node's memory, in the phase that takes most."""
        hardware = self.resolved.hardware
        pool = None
        if hardware.shared is not None:
            beside = self.outside + max((self.needs or 0) - self.allocated, 0)
            pool = SharedPool(beside, hardware.shared.unsure_bytes)
        return node_memory(self.life, hardware.node_bytes, hardware.node_read_from, pool)
