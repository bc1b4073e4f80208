"""Replays a stage's allocation stream through the model of torch's allocator: reserved, needs."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from ..ledger.ledger import RUNTIME, SLACK, Entry, Ledger
from ..ledger.num import sized
from ..ledger.remember import Same, remembered
from ..ledger.source import code
from ..ledger.units import KIB, MIB
from ..pytorch.replay.blocks import SPAN
from ..pytorch.replay.footprint import ReplayPhase
from ..pytorch.replay.needs import NeedsSearch, raised_cap
from ..pytorch.replay.rounding import UNIT
from ..pytorch.replay.settings import AllocatorSettings
from ..pytorch.replay.slack import slack_at_start, slack_bytes
from ..pytorch.replay.stream import AllocationStream
from ..run.phases import STARTUP
from ..run.run import Run
from ..runfile.resolve.resolved_run import ResolvedRun
from .margin import Margin, WithMargin, margin_bytes, margin_of
from .stage_ledgers import ledger_of, step_phases
from .stage_requests import DrawnRequests, StageRequests, requests_of, shape_streams, stage_requests

if TYPE_CHECKING:
    from ..training.lengths.batches import DrawnBatches

APART = 64 * KIB
"""Bytes of small tensors by which the peaks of stream and ledger may differ."""
COARSE, FINE = 20, 1000
"""Of the peak, one part in this: by no more is the ledger of 4-bit projections above the replay,
and that of DoRA."""
MOST_BYTES, MOST_EXPANDED = 2**46, SPAN * UNIT
"""Larger runs do not exist, and are not replayed; with segments that expand, as many as one has
addresses for.
"""
FEW = 3
"""So many replays are kept: other tools often make the same run of one's settings."""


class StageReplay(WithMargin, Struct, frozen=True, kw_only=True, dict=True):
    """The replay of one pipeline stage.

    - allocated_bytes: the peak of the steps, torch's max_memory_allocated
    - startup_bytes: the peak of start-up
    - reserved_bytes: torch's max_memory_reserved
    - phases: the same statistics for each phase
    - asked: the requests that were replayed
    - search: replays of them under caps
    - allocator: the allocator's settings
    - margin: the shares of its margin
    """

    allocated_bytes: int
    startup_bytes: int
    reserved_bytes: int
    phases: dict[str, ReplayPhase]
    asked: StageRequests | DrawnRequests
    search: NeedsSearch
    allocator: AllocatorSettings
    margin: Margin

    @cached_property
    def needs_bytes(self) -> int:
        """The least bytes with which torch gets through, found by a search, and at least what is
        allocated with room: with max_split_size_mb, blocks that are not split take more there than
        on the least card, where they are released and allocated anew.
        """
        usual = max(self.search.needs_bytes(), self.allocated_bytes)
        return usual if self._tight is None else min(usual, self._tight.needs_bytes())

    @property
    def least_card_bytes(self) -> int:
        """At least this is what it needs with its margin; known without a search."""
        least = self.allocated_bytes if self._tight is None else 0
        return least + margin_bytes(self.margin, least, self.reserved_bytes)

    def survives(self, cap: int) -> bool:
        """Whether the stage gets through when torch may take at most `cap` bytes."""
        return self.reserved_under(cap) is not None

    def reserved_under(self, cap: int) -> int | None:
        """Bytes that torch reserves when it may take at most `cap`; None where it does not get
        through.
        """
        searches = [self.search] if self._tight is None else [self.search, self._tight]
        enough = (search for search in searches if search.survives(cap // UNIT))
        return next((one.outcome(cap // UNIT).peak_reserved * UNIT for one in enough), None)

    def fails_in(self, cap: int) -> str | None:
        """The mark of the phase that runs out of memory when torch may take at most `cap` bytes;
        None where none does.
        """
        return (self._tight or self.search).fails_in(cap // UNIT)

    @cached_property
    def _tight(self) -> NeedsSearch | None:
        """Replays of the requests on a small GPU, which matter where start-up takes more than the
        steps.
        """
        if self.asked.ledger.tight is None or self.startup_bytes <= self.allocated_bytes:
            return None
        return NeedsSearch(self.asked.tight, self.allocator)

    @cached_property
    def slack_bytes(self) -> int:
        """The most bytes by which the live blocks of the steps can be larger than their tensors."""
        return slack_bytes(self.asked.usual, self.search.plan)


def taken_under(resolved: ResolvedRun, stage: int, cap: int) -> int:
    """`cap` where a stage gets through when torch may take at most `cap` bytes; else about the
    bytes with which it would.
    """
    requests, settings = stage_requests(resolved, stage), resolved.allocator
    taken = raised_cap(requests.usual, settings, cap)
    if taken == cap or requests.ledger.tight is None:
        return taken
    return min(taken, raised_cap(requests.tight, settings, cap))


def replay_stage(resolved: ResolvedRun, stage: int, ledger: Ledger) -> StageReplay | None:
    """Replay a stage, of which `ledger` is the ledger; None where the run is too large for it."""
    return replay_peaks(resolved, stage, int(ledger.peak()), _steps_peak(ledger))


def replay_peaks(resolved: ResolvedRun, stage: int, highest: int, steps: int) -> StageReplay | None:
    """Replay a stage, of whose ledger these are the highest instant and that of its steps; None
    where the run is too large for it.
    """
    engine, run, allocator = resolved.engine.name, resolved.run, resolved.allocator
    if highest > most_bytes(allocator):
        return None
    drawn = None if resolved.lengths is None else Same(resolved.lengths)
    return _replayed(ledger_of(resolved), engine, run, stage, allocator, steps, drawn)


@remembered(FEW)
def _replayed(
    make: Callable[[Run], Ledger],
    engine: str,
    run: Run,
    stage: int,
    allocator: AllocatorSettings,
    peak: int,
    drawn: Same[DrawnBatches] | None,
) -> StageReplay:
    """The replay of a stage, whose steps have this peak by the ledger."""
    requests: StageRequests | DrawnRequests = requests_of(make, run, stage)
    if drawn is not None:
        streams = shape_streams(make, run, stage)
        requests = DrawnRequests(streams, drawn.value.main)
    search = _searched(Same(requests.usual), allocator)
    outcome = search.unlimited
    _, startup = requests.usual.marks[0]
    steps = [phase.peak_bytes for name, phase in outcome.phases.items() if name != startup]
    least = _least_bytes(run, peak, max(steps))
    return StageReplay(
        allocated_bytes=least,
        startup_bytes=outcome.phases[startup].peak_bytes,
        reserved_bytes=max(outcome.reserved_bytes, least),
        phases=outcome.phases,
        asked=requests,
        search=search,
        allocator=allocator,
        margin=margin_of(run, engine),
    )


@remembered(FEW, always=True)
def _searched(stream: Same[AllocationStream], allocator: AllocatorSettings) -> NeedsSearch:
    """The replays of a stream, which several runs may have."""
    return NeedsSearch(stream.value, allocator)


def _least_bytes(run: Run, peak: int, replayed: int) -> int:
    """The peak of the steps: that of the replay, or the ledger's where it is known to have together
    what comes one after the other, and so is a bound.

    - 4-bit projections that are recomputed: torch's checkpoint stops before the block's last one,
      whose backward then runs before the block's activations are there again
    - a single layer: its peak may come before its first product, which allocates the workspace
    - DoRA under ZeRO-3 with many layers, whose magnitudes every rank keeps whole: the ledger has a
      few MiB more than the stream (3 of 60 GiB with 80 layers); why is open
    """
    beyond = peak - replayed
    packed = run.quantization == "nf4" and beyond <= peak // COARSE
    single = len(run.arch.layers) == 1 and beyond <= 128 * MIB + APART
    dora = run.adapter is not None and run.adapter.dora and beyond <= peak // FINE
    return peak if beyond > APART and (packed or single or dora) else replayed


def _steps_peak(ledger: Ledger) -> int:
    """The ledger's peak without start-up."""
    return int(ledger.peak(phases=step_phases(ledger)))


def too_large(ledger: Ledger, allocator: AllocatorSettings) -> bool:
    """Whether a run is larger than the model of the allocator can handle."""
    return int(ledger.peak()) > most_bytes(allocator)


def most_bytes(allocator: AllocatorSettings) -> int:
    """The most bytes of a run that is replayed."""
    return MOST_EXPANDED if allocator.expandable_segments else MOST_BYTES


def with_block_rounding(ledger: Ledger, stage: StageReplay) -> Ledger:
    """The ledger with an entry for the bytes by which blocks are larger than their tensors.

    The figure is that of the peak, and is used at every instant of the steps. It is only rounding:
    never negative, and at most `slack_bytes` and a few small tensors.
    """
    steps = {i.name: 1 for i in ledger.instants if i.phase != STARTUP}
    beyond = stage.allocated_bytes - _steps_peak(ledger)
    # Start-up's end is one of the instants whose highest slack is the bound, and quickly counted.
    if beyond > slack_at_start(stage.asked.usual, stage.search.plan):
        most = stage.slack_bytes + APART
        assert beyond <= most, f"blocks have {beyond:,} B beyond their tensors"
    drawn = isinstance(stage.asked, DrawnRequests)  # the longest batch may be the first step's
    assert drawn or beyond >= -APART, f"blocks have {-beyond:,} B less than their tensors"
    blocks = Entry(
        name=SLACK,
        kind=RUNTIME,
        bytes=sized(max(beyond, 0), 8),
        live=steps,
        source=code(
            "torch 2.11 c10/cuda/CUDACachingAllocator.cpp round_size, should_split, replayed"
        ),
    )
    return replace(ledger, entries=(*ledger.entries, blocks))
