"""A stream and settings prepared for replays: sizes in units, pools, and stops between events."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING

from .blocks import NEVER, SHIFT
from .native_library import library
from .rounding import SMALL, UNIT, round_units
from .settings import AllocatorSettings
from .stream import UNTIL_MARK, AllocationStream

if TYPE_CHECKING:
    from .native import NativePlan
    from .repeats import Repeats

EMPTY = ""
"""The name of a stop at which all cached segments are released."""
UNTIL_DONE = NEVER - 1
"""More events than any stream has, for blocks that are freed at the next mark."""


class ReplayPlan:
    """What all replays of one stream with the same settings share; sizes are in units of 512 bytes.

    What a replay in Python alone needs is computed when it begins.

    - collects: garbage is collected under a cap
    - maps_pages: the driver is asked for the pages that an expandable segment lacks
    - oversize: a block from this size on serves only requests from this size on
    - rounding: such a block must exceed its request by less than this
    - unsplit: the block of a request from this size on is never split
    - large_segment: of the large pool
    - marks: the stream's
    """

    def __init__(self, stream: AllocationStream, settings: AllocatorSettings) -> None:
        self.stream, self.settings, self.marks = stream, settings, stream.marks
        fraction, expandable = settings.memory_fraction, settings.expandable_segments
        self.collects = fraction and settings.garbage_collection_threshold > 0
        self.maps_pages = expandable and not fraction
        split = settings.max_split_bytes
        self.oversize = NEVER if split is None else split // UNIT
        self.unsplit = NEVER if expandable else self.oversize
        self.large_segment = settings.large_segment_bytes // UNIT
        rounding = settings.max_non_split_rounding_bytes
        self.rounding = self.large_segment if rounding is None else rounding // UNIT

    @cached_property
    def native(self) -> NativePlan | None:
        """The same for C, where its library is to be had."""
        found = library()
        if found is None:
            return None
        from .native import NativePlan  # which needs ctypes

        return NativePlan(self, found)

    @cached_property
    def events(self) -> list[int]:
        """The stream's."""
        return self.stream.events.tolist()

    @cached_property
    def units(self) -> list[int]:
        """Of each tensor's block."""
        rounded = {size: round_units(size, self.settings) for size in set(self.stream.sizes)}
        return [rounded[size] for size in self.stream.sizes]

    @cached_property
    def wanted(self) -> list[int]:
        """The smallest block that fits each tensor, as blocks.py writes it."""
        return [units << SHIFT for units in self.units]

    @cached_property
    def pool_of(self) -> list[int]:
        """The pool of each tensor: two for each CUDA stream, large (even) and small (odd)."""
        streams = self.stream.streams
        if not streams:
            return [int(need <= SMALL) for need in self.units]
        first = {stream: 2 * i for i, stream in enumerate(sorted(set(streams)))}
        return [first[s] + (need <= SMALL) for need, s in zip(self.units, streams, strict=True)]

    @cached_property
    def num_pools(self) -> int:
        """How many there are."""
        return max(self.pool_of, default=1) + 1

    @property
    def least_rest_of_large(self) -> int:
        """In a large pool, a rest of more than this is split off a block; in a small one, any."""
        return 0 if self.settings.expandable_segments else SMALL

    @cached_property
    def least_rest(self) -> list[int]:
        """For each pool, a rest of more than this is split off a block."""
        return [self.least_rest_of_large, 0] * (self.num_pools // 2 + 1)

    @cached_property
    def least_rest_block(self) -> list[int]:
        """The largest such block that is not split off, as blocks.py writes it."""
        return [(rest + 1 << SHIFT) - 1 for rest in self.least_rest]

    @cached_property
    def uses(self) -> dict[int, int]:
        """For tensors used on other CUDA streams, the events after which they can be freed."""
        return _uses(self.stream)

    @cached_property
    def usual(self) -> bool:
        """Whether blocks of any size are split, no segment grows, no garbage is collected, and no
        tensor is used on another CUDA stream.
        """
        settings = self.settings
        other = settings.expandable_segments or self.collects or self.uses
        return settings.max_split_bytes is None and not other

    @cached_property
    def repeats(self) -> Repeats:
        """Windows between marks that repeat the one before them."""
        from .repeats import Repeats

        return Repeats(self.stream, self)

    @cached_property
    def mark_stops(self) -> list[int]:
        """The index of each mark among the stops."""
        return [i for i, (_, name) in enumerate(self.stops) if name]

    @property
    def most_alive(self) -> int:
        """The peak of the tensors alive: no cap below it suffices."""
        return self.native.most_alive if self.native else max(self._alive(), default=0)

    def first_beyond(self, units: int) -> int:
        """The first event after which more than `units` are alive."""
        if self.native:
            return self.native.first_beyond(units)
        return next(at for at, alive in enumerate(self._alive()) if alive > units)

    def _alive(self) -> Iterator[int]:
        """The units of the tensors alive after each event, each at its rounded size."""
        units = self.units
        return accumulate([units[event] if event >= 0 else -units[~event] for event in self.events])

    @cached_property
    def stops(self) -> list[tuple[int, str | None]]:
        """Where a replay pauses: (events before it, the mark's name, EMPTY or None), in order.

        At a stop that is no mark, blocks are freed whose other CUDA streams have finished by then,
        and an event of a tensor without bytes is skipped.
        """
        stream = self.stream
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
