"""The estimate's own stream through torch's allocator: what is reserved, what a run needs."""

from __future__ import annotations

from functools import cached_property

from msgspec import Struct
from msgspec.structs import replace

from ..ledger.ledger import RUNTIME, Entry, Ledger
from ..ledger.source import code
from ..replay.allocator import ReplayPhase, replay
from ..replay.needs import needs_bytes
from ..replay.settings import AllocatorSettings
from ..replay.slack import slack_bytes
from ..replay.stream import AllocationStream
from ..run.phases import STARTUP
from ..step.stream import stream
from .resolved_run import ResolvedRun

MICRO_BATCHES = 4
"""So many a pipeline stage are replayed of a step's: those that follow find the same blocks. All of
36 measured runs that accumulate need and reserve the same with 4 as with more."""
MOST_BYTES, MOST_LAYERS = 2**46, 2**11
"""A run with more is no one's, and is not replayed."""


class StageReplay(Struct, frozen=True, kw_only=True, dict=True):
    """What the allocator makes of one pipeline stage; `phases` as torch's statistics have them."""

    allocated_bytes: int
    startup_bytes: int
    reserved_bytes: int
    phases: dict[str, ReplayPhase]
    asked: StageRequests
    allocator: AllocatorSettings

    @cached_property
    def needs_bytes(self) -> int:
        """The least that torch must be given; it takes a search.

        The way for a small GPU matters where start-up takes more than the steps do.
        """
        found = needs_bytes(self.asked.usual, self.allocator, self.reserved_bytes)
        if self.asked.ledger.tight is None or self.startup_bytes <= self.allocated_bytes:
            return found
        return min(found, needs_bytes(self.asked.tight, self.allocator, self.reserved_bytes))

    @cached_property
    def slack_bytes(self) -> int:
        """The most that the steps' live blocks can have beyond their tensors."""
        return slack_bytes(self.asked.usual, self.allocator)


class StageRequests(Struct, frozen=True, dict=True):
    """What a stage asks of the allocator: in the usual way, and in the one for a small GPU."""

    ledger: Ledger
    micro_batches: int

    @cached_property
    def usual(self) -> AllocationStream:
        """As the engine does it."""
        return stream(self.ledger, self.micro_batches)

    @cached_property
    def tight(self) -> AllocationStream:
        """As it does it when the GPU is too small for that."""
        return stream(self.ledger, self.micro_batches, tight=True)


def asked(resolved: ResolvedRun, stage: int) -> StageRequests:
    """What a stage asks, its ledger unrolled."""
    run = resolved.run
    count = min(int(run.micro_batches), MICRO_BATCHES * int(run.mesh.pp))
    run = replace(run, stage=stage, unrolled=True, micro_batches=count)
    ledger = replace(resolved.engine.ledger(run), scaled=run.parameters_given is not None)
    return StageRequests(ledger, count)


def survives(resolved: ResolvedRun, stage: int, cap: int) -> bool:
    """Whether a stage gets through with so many bytes for torch."""
    found, settings = asked(resolved, stage), resolved.allocator
    if replay(found.usual, settings, cap).failed_at is None:
        return True
    return found.ledger.tight is not None and replay(found.tight, settings, cap).failed_at is None


def replayed(resolved: ResolvedRun, stage: int) -> StageReplay | None:
    """Replay a stage; None for an absurd run."""
    if _absurd(resolved, stage):
        return None
    own = asked(resolved, stage)
    found = replay(own.usual, resolved.allocator)
    _, startup = own.usual.marks[0]
    steps = [phase.peak_bytes for name, phase in found.phases.items() if name != startup]
    return StageReplay(
        allocated_bytes=max(steps),
        startup_bytes=found.phases[startup].peak_bytes,
        reserved_bytes=found.reserved_bytes,
        phases=found.phases,
        asked=own,
        allocator=resolved.allocator,
    )


def _absurd(resolved: ResolvedRun, stage: int) -> bool:
    """Whether a run is larger than the model of the allocator can say anything about."""
    if len(resolved.run.arch.layers) > MOST_LAYERS:
        return True
    return int(resolved.engine.ledger(replace(resolved.run, stage=stage)).peak()) > MOST_BYTES


def with_blocks(ledger: Ledger, found: StageReplay) -> Ledger:
    """A ledger with what the allocator's blocks have beyond the bytes that were asked for.

    The figure is the peak's, and stands at every instant of the steps. It is nothing but rounding:
    never negative, never more than the blocks that are alive can have beyond their tensors.
    """
    steps = {i.name: 1 for i in ledger.instants if i.phase != STARTUP}
    peak = int(ledger.peak(phases={i.phase for i in ledger.instants} - {STARTUP}))
    beyond = found.allocated_bytes - peak
    most = found.slack_bytes
    assert 0 <= beyond <= most, f"blocks have {beyond:,} B beyond tensors, at most {most:,}"
    blocks = Entry(
        name="blocks larger than their tensors", kind=RUNTIME, bytes=beyond, live=steps,
        source=code("torch 2.11 c10/cuda/CUDACachingAllocator.cpp round_size, should_split, "
                    "replayed"),
    )  # fmt: skip
    return replace(ledger, entries=(*ledger.entries, blocks))
