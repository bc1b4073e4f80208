"""A run whose batches differ: which of the drawn orders is shown, and in how many it dies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from ..pytorch.replay.replays import replay
from ..pytorch.replay.settings import AllocatorSettings
from ..runfile.resolve.resolved_run import ResolvedRun
from ..training.lengths.batches import Order
from ..training.lengths.shaped_stream import joined_stream
from .fit_verdict import FITS, SHORT, UNSURE
from .stage_requests import ShapeStreams

if TYPE_CHECKING:
    from .stage_replay import StageReplay


class DrawnReserve(Struct, frozen=True):
    """What torch reserves after the steps of each drawn order, in bytes.

    `dying` orders run out of memory on the card; `close` ones are those within the margin, too.
    """

    reserved: tuple[int, ...]
    dying: int = 0
    close: int = 0

    @property
    def verdict(self) -> str:
        """The verdict where it is not known which order a run draws."""
        if self.dying == len(self.reserved):
            return SHORT
        return UNSURE if self.close else FITS


def shape_streams(resolved: ResolvedRun, stage: int = 0) -> ShapeStreams:
    """The streams of a run's shapes."""
    return ShapeStreams(resolved.engine.ledger, resolved.run, stage)


def settled(resolved: ResolvedRun) -> tuple[ResolvedRun, DrawnReserve | None]:
    """The run with the order that reserves the median, and what all of them reserve; the run itself
    where all its batches are alike, or its order is known.
    """
    drawn = resolved.lengths
    if drawn is None or drawn.known:
        return resolved, None
    streams = shape_streams(resolved)
    reserved = tuple(reserved_bytes(order, streams, resolved.allocator) for order in drawn.orders)
    ranked = sorted(range(len(reserved)), key=reserved.__getitem__)
    drawn = replace(drawn, chosen=ranked[len(ranked) // 2])
    run = drawn.longest.of(resolved.run)
    return replace(resolved, run=run, lengths=drawn), DrawnReserve(reserved)


def reserved_bytes(order: Order, streams: ShapeStreams, settings: AllocatorSettings) -> int:
    """What torch reserves after an order's steps on a roomy GPU."""
    return replay(joined_stream(order, streams), settings).reserved_bytes


def under_cap(
    resolved: ResolvedRun, found: DrawnReserve, shown: StageReplay, cap: int
) -> DrawnReserve:
    """How many orders run out of memory where torch may take at most `cap` bytes."""
    drawn = resolved.lengths
    assert drawn is not None
    streams = shape_streams(resolved)
    dying = close = 0
    margin = None
    for order, reserved in zip(drawn.orders, found.reserved, strict=True):
        if reserved + shown.enough_bytes - shown.reserved_bytes <= cap:
            continue
        margin = shown.most_margin_bytes(cap) if margin is None else margin
        stream = joined_stream(order, streams)
        dies = replay(stream, resolved.allocator, cap).failed_at is not None
        dying += dies
        close += dies or replay(stream, resolved.allocator, cap - margin).failed_at is not None
    return replace(found, dying=dying, close=close)
