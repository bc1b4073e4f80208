"""A run whose batches differ: which of the drawn orders is shown, and in how many it dies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from ..pytorch.replay.replays import replay
from ..pytorch.replay.settings import AllocatorSettings
from ..runfile.resolve.resolved_run import ResolvedRun
from ..training.lengths.batches import Order, size
from ..training.lengths.shaped_stream import joined_stream
from .fit_verdict import FITS, SHORT, UNSURE
from .stage_ledgers import ledger_of
from .stage_requests import ShapeStreams, shape_streams

if TYPE_CHECKING:
    from .stage_replay import StageReplay

FEW = 2  # orders of a quick verdict


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


def settled(resolved: ResolvedRun) -> tuple[ResolvedRun, DrawnReserve | None]:
    """The run with the order that reserves the median, and what all of them reserve; the run itself
    where all its batches are alike, or its order is known.
    """
    drawn = resolved.lengths
    if drawn is None or drawn.known:
        return resolved, None
    streams = shape_streams(ledger_of(resolved), resolved.run, 0)
    reserved: list[int] = []
    for number, order in enumerate(drawn.orders):
        _progress(number, len(drawn.orders))
        reserved.append(reserved_bytes(order, streams, resolved.allocator))
    ranked = sorted(range(len(reserved)), key=reserved.__getitem__)
    found = _with_chosen(resolved, ranked[len(ranked) // 2])
    return found, DrawnReserve(tuple(reserved))


def hardest(resolved: ResolvedRun) -> ResolvedRun:
    """The run with the few orders whose batches are longest, for a quick verdict."""
    drawn = resolved.lengths
    if drawn is None or drawn.known:
        return resolved
    longest = [max(size(batch) for step in order for batch in step) for order in drawn.orders]
    ranked = sorted(range(len(longest)), key=longest.__getitem__, reverse=True)[:FEW]
    few = replace(
        drawn,
        orders=tuple(drawn.orders[number] for number in ranked),
        numbers=tuple(drawn.numbers[number] for number in ranked),
        sets=tuple(drawn.sets[number % len(drawn.sets)] for number in ranked),
    )
    return _with_chosen(replace(resolved, lengths=few), 0)


def _with_chosen(resolved: ResolvedRun, number: int) -> ResolvedRun:
    """The run with the order that is shown."""
    assert resolved.lengths is not None
    drawn = replace(resolved.lengths, chosen=number)
    return replace(resolved, run=drawn.longest.of(resolved.run), lengths=drawn)


Progress = Callable[[int, int], None]  # orders that are done, and all
_watching: ContextVar[Progress | None] = ContextVar("progress of drawn orders", default=None)


@contextmanager
def watched(progress: Progress) -> Iterator[None]:
    """`progress` is called after each order that is replayed here."""
    token = _watching.set(progress)
    try:
        yield
    finally:
        _watching.reset(token)


def _progress(done: int, total: int) -> None:
    progress = _watching.get()
    if progress is not None:
        progress(done, total)


def reserved_bytes(order: Order, streams: ShapeStreams, settings: AllocatorSettings) -> int:
    """What torch reserves after an order's steps on a roomy GPU."""
    return replay(joined_stream(order, streams), settings).reserved_bytes


def under_cap(
    resolved: ResolvedRun, found: DrawnReserve, shown: StageReplay, cap: int
) -> DrawnReserve:
    """How many orders run out of memory where torch may take at most `cap` bytes."""
    drawn = resolved.lengths
    assert drawn is not None
    streams = shape_streams(ledger_of(resolved), resolved.run, 0)
    dying = close = 0
    margin = None
    for number, (order, reserved) in enumerate(zip(drawn.orders, found.reserved, strict=True)):
        _progress(number, len(drawn.orders))
        if reserved + shown.enough_bytes - shown.reserved_bytes <= cap:
            continue
        margin = shown.most_margin_bytes(cap) if margin is None else margin
        stream = joined_stream(order, streams)
        dies = replay(stream, resolved.allocator, cap).failed_at is not None
        dying += dies
        close += dies or replay(stream, resolved.allocator, cap - margin).failed_at is not None
    return replace(found, dying=dying, close=close)
