"""What a pipeline stage asks of the allocator: for batches of one shape, or for drawn ones."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from ..ledger.ledger import Ledger
from ..ledger.remember import remembered
from ..pytorch.replay.stream import AllocationStream
from ..run.run import Run
from ..runfile.resolve.resolved_run import ResolvedRun
from ..training.step.stream import allocation_stream, refilled_stream
from .stage_ledgers import ledger_of

if TYPE_CHECKING:
    from ..training.lengths.batches import BatchShape, Order
    from ..training.lengths.shaped_stream import CutStream

MICRO_BATCHES = 4
"""At most this many micro-batches per pipeline stage are replayed; later ones reuse the same
blocks. All of 36 measured runs that accumulate need and reserve the same with 4 as with more."""


class StageRequests(Struct, frozen=True, dict=True):
    """The requests of a stage to the allocator: the usual ones, and those on a small GPU.

    `like`: what is equal for runs that differ in batch and sequence alone, or in sizes.
    """

    ledger: Ledger
    micro_batches: int
    like: object = None

    @cached_property
    def usual(self) -> AllocationStream:
        """The requests on a GPU with enough memory."""
        return self._stream(tight=False)

    @cached_property
    def tight(self) -> AllocationStream:
        """The requests on a GPU that is too small for the usual ones."""
        return self._stream(tight=True)

    def _stream(self, *, tight: bool) -> AllocationStream:
        if self.like is None:
            return allocation_stream(self.ledger, self.micro_batches, tight=tight)
        return refilled_stream(self.like, self.ledger, self.micro_batches, tight=tight)


def stage_requests(resolved: ResolvedRun, stage: int) -> StageRequests:
    """The requests of a stage, from its ledger with every layer unrolled."""
    return requests_of(ledger_of(resolved), resolved.run, stage)


def requests_of(make: Callable[[Run], Ledger], run: Run, stage: int) -> StageRequests:
    """The requests of a stage whose batches have one shape."""
    group = int(run.micro_batch_group or run.mesh.pp)
    rest = int(run.micro_batches) % group if run.virtual_stages > 1 else 0  # a smaller last group
    count = min(int(run.micro_batches), MICRO_BATCHES * group + rest)
    run = replace(run, stage=stage, unrolled=True, micro_batches=count)
    ledger = replace(make(run), scaled=run.parameters_given is not None)
    like = ledger.schedule and (ledger.schedule, count, _events(ledger))
    plain = replace(run, batch=0, seq=0, labelled=None)
    return StageRequests(ledger, count, like or (make, plain))


def _events(ledger: Ledger) -> tuple[object, ...]:
    """The events of each different block, by which a ledger finds another one that is alike."""
    scripts = {id(play.script): play.script for play in ledger.plays.values()}
    return tuple((script.forward, script.backward) for script in scripts.values())


class ShapeStreams:
    """The streams of a stage for batches of any shape, each made once; `tight`: on a GPU that is
    too small for how the engine usually allocates.
    """

    __slots__ = ("_cuts", "_of", "_streams", "micro_batches", "tight")

    def __init__(
        self, make: Callable[[Run], Ledger], run: Run, stage: int, *, tight: bool = False
    ) -> None:
        self._of = (make, run, stage)
        self._streams: dict[BatchShape, AllocationStream] = {}
        self._cuts: dict[int, CutStream] = {}
        self.tight = tight
        self.micro_batches = 0

    def asked(self, shape: BatchShape) -> StageRequests:
        """The requests of a run whose batches all have this shape."""
        make, run, stage = self._of
        return requests_of(make, shape.of(run), stage)

    def __getitem__(self, shape: BatchShape) -> AllocationStream:
        """The stream of a run whose batches all have this shape."""
        if shape not in self._streams:
            asked = self.asked(shape)
            self.micro_batches = asked.micro_batches
            self._streams[shape] = asked.tight if self.tight else asked.usual
        return self._streams[shape]

    def cut(self, shape: BatchShape) -> CutStream:
        """It in pieces. Streams that differ in sizes alone have the same events."""
        from ..training.lengths.shaped_stream import cut

        stream = self[shape]
        if id(stream.events) not in self._cuts:
            apart = int(self._of[1].mesh.pp) == 1
            self._cuts[id(stream.events)] = cut(stream, self.micro_batches, apart=apart)
        return self._cuts[id(stream.events)]

    def on_small_card(self) -> ShapeStreams:
        """The same on a GPU that is too small."""
        return ShapeStreams(*self._of, tight=True)


def shape_streams(make: Callable[[Run], Ledger], run: Run, stage: int) -> ShapeStreams:
    """The streams of the shapes of a stage, kept from one question to the next."""
    any_shape = replace(run, batch=1, seq=1, padded=False, labelled=None)
    return _kept_streams(make, any_shape, stage)


@remembered(1)
def _kept_streams(make: Callable[[Run], Ledger], run: Run, stage: int) -> ShapeStreams:
    return ShapeStreams(make, run, stage)


class DrawnRequests(Struct, frozen=True, dict=True):
    """The requests of a stage whose batches are drawn, in the order of the steps."""

    streams: ShapeStreams
    order: Order

    @cached_property
    def ledger(self) -> Ledger:
        """That of the longest batch."""
        from ..training.lengths.batches import size

        return self.streams.asked(max((b for s in self.order for b in s), key=size)).ledger

    @cached_property
    def usual(self) -> AllocationStream:
        """The requests on a GPU with enough memory."""
        return self._joined(self.streams)

    @cached_property
    def tight(self) -> AllocationStream:
        """The requests on a GPU that is too small for the usual ones."""
        return self._joined(self.streams.on_small_card())

    def _joined(self, streams: ShapeStreams) -> AllocationStream:
        from ..training.lengths.shaped_stream import joined_stream

        return joined_stream(self.order, streams)
