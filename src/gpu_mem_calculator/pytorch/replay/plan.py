"""A stream and settings prepared for replays: sizes in units, pools, and stops between events."""

from __future__ import annotations

from typing import Any

from .blocks import NEVER, SHIFT
from .repeats import Repeats
from .rounding import SMALL, UNIT, round_units
from .settings import AllocatorSettings
from .stream import UNTIL_MARK, AllocationStream

EMPTY = ""
"""The name of a stop at which all cached segments are released."""
UNTIL_DONE = NEVER - 1
"""More events than any stream has, for blocks that are freed at the next mark."""


class ReplayPlan:
    """What all replays of one stream with the same settings share; sizes are in units of 512 bytes.

    - collects: garbage is collected under a cap
    - maps_pages: the driver is asked for the pages that an expandable segment lacks
    - units: of each tensor's block; wanted: the smallest block that fits it, as blocks.py writes it
    - pool_of: the pool of each tensor
    - least_rest: for each pool, a rest of more than this is split off a block; least_rest_block:
      the largest such block that is not split off, as blocks.py writes it
    - oversize: a block from this size on serves only requests from this size on
    - rounding: such a block must exceed its request by less than this
    - unsplit: the block of a request from this size on is never split
    - large_segment: of the large pool
    - uses: for tensors used on other CUDA streams, the events after which they can be freed
    - usual: blocks of any size are split, no segment grows, no garbage is collected, and no tensor
      is used on another CUDA stream
    - stops: where a replay pauses between events
    - marks: the stream's; mark_stops: the index of each among the stops
    - native: the same for C, where a replay in C has begun (native.py)
    - repeats: windows between marks that repeat the one before them
    """

    __slots__ = (
        "collects",
        "events",
        "large_segment",
        "least_rest",
        "least_rest_block",
        "maps_pages",
        "mark_stops",
        "marks",
        "native",
        "num_pools",
        "oversize",
        "pool_of",
        "repeats",
        "rounding",
        "settings",
        "stops",
        "units",
        "unsplit",
        "uses",
        "usual",
        "wanted",
    )

    def __init__(self, stream: AllocationStream, settings: AllocatorSettings) -> None:
        self.settings = settings
        self.native: Any = None
        fraction = settings.memory_fraction
        self.collects = fraction and settings.garbage_collection_threshold > 0
        self.maps_pages = settings.expandable_segments and not fraction
        self.events = stream.events.tolist()
        rounded = {size: round_units(size, settings) for size in set(stream.sizes)}
        self.units = [rounded[size] for size in stream.sizes]
        self.wanted = [units << SHIFT for units in self.units]
        self.pool_of = _pools(self.units, stream.streams)
        self.num_pools = max(self.pool_of, default=1) + 1
        least = 0 if settings.expandable_segments else SMALL
        self.least_rest = [least, 0] * (self.num_pools // 2 + 1)
        self.least_rest_block = [(rest + 1 << SHIFT) - 1 for rest in self.least_rest]
        split = settings.max_split_bytes
        self.oversize = NEVER if split is None else split // UNIT
        self.unsplit = NEVER if settings.expandable_segments else self.oversize
        self.large_segment = settings.large_segment_bytes // UNIT
        rounding = settings.max_non_split_rounding_bytes
        self.rounding = self.large_segment if rounding is None else rounding // UNIT
        self.uses = _uses(stream)
        other = settings.expandable_segments or self.collects or self.uses
        self.usual = split is None and not other
        self.stops = self._stops(stream)
        self.marks = stream.marks
        self.mark_stops = [i for i, (_, name) in enumerate(self.stops) if name]
        self.repeats = Repeats(stream, self)

    def _stops(self, stream: AllocationStream) -> list[tuple[int, str | None]]:
        """Where a replay pauses: (events before it, the mark's name, EMPTY or None), in order.

        At a stop that is no mark, blocks are freed whose other CUDA streams have finished by then,
        and an event of a tensor without bytes is skipped.
        """
        stops: list[tuple[int, str | None]] = [(end, name) for end, name in stream.marks]
        stops += [(end, EMPTY) for end in stream.empties]
        stops += [(end, None) for end in self.uses.values() if end < UNTIL_DONE]
        if 0 in self.units:
            empty = {tensor for tensor, units in enumerate(self.units) if not units}
            empty |= {~tensor for tensor in empty}
            found = (i for i, event in enumerate(self.events) if event in empty)
            stops += [(at, None) for i in found for at in (i, i + 1)]
        return sorted(stops, key=lambda stop: stop[0])


def _uses(stream: AllocationStream) -> dict[int, int]:
    """For each tensor used on other CUDA streams, the events after which those are done; at the
    earliest its free.
    """
    if not stream.uses:
        return {}
    streams = stream.streams or [0] * len(stream.sizes)
    freed = {~event: at + 1 for at, event in enumerate(stream.events) if event < 0}
    uses: dict[int, int] = {}
    for tensor, other, end in stream.uses:
        if other != streams[tensor]:
            end = UNTIL_DONE if end == UNTIL_MARK else max(end, freed.get(tensor, 0))
            uses[tensor] = max(end, uses.get(tensor, 0))
    return uses


def _pools(units: list[int], streams: list[int]) -> list[int]:
    """The pool of each tensor: two for each CUDA stream, large (even) and small (odd)."""
    if not streams:
        return [int(need <= SMALL) for need in units]
    first = {stream: 2 * i for i, stream in enumerate(sorted(set(streams)))}
    return [first[s] + (need <= SMALL) for need, s in zip(units, streams, strict=True)]
