"""A stream and settings made ready to be played: sizes in units, pools, what happens in between."""

from __future__ import annotations

from .blocks import NEVER, SHIFT
from .rounding import SMALL, UNIT, round_units
from .settings import AllocatorSettings
from .stream import UNTIL_MARK, AllocationStream

EMPTY = ""
"""The name of a cut at which all cached segments are given back."""
UNTIL_DONE = NEVER - 1
"""More events than any stream has, for blocks that come back at the next mark."""


class ReplayPlan:
    """What stays the same between replays of one stream under one setting."""

    __slots__ = (
        "collects", "cuts", "events", "is_plain", "large_segment", "least_rest", "num_pools",
        "oversize", "pool_of", "rounding", "settings", "units", "unsplit", "uses", "wanted",
    )  # fmt: skip

    def __init__(self, stream: AllocationStream, settings: AllocatorSettings) -> None:
        self.settings = settings
        self.collects = settings.garbage_collection_threshold > 0  # garbage, under a cap
        self.is_plain = not (self.collects or settings.expandable_segments)
        self.events = stream.events
        rounded = {size: round_units(size, settings) for size in set(stream.sizes)}
        self.units = [rounded[size] for size in stream.sizes]
        self.wanted = [units << SHIFT for units in self.units]
        self.pool_of = _pools(self.units, stream.streams)
        self.num_pools = max(self.pool_of, default=1) + 1
        least = 0 if settings.expandable_segments else SMALL
        self.least_rest = [least, 0] * (self.num_pools // 2 + 1)
        split = settings.max_split_bytes
        self.oversize = NEVER if split is None else split // UNIT
        self.unsplit = NEVER if settings.expandable_segments else self.oversize
        self.large_segment = settings.large_segment_bytes // UNIT
        rounding = settings.max_non_split_rounding_bytes
        self.rounding = self.large_segment if rounding is None else rounding // UNIT
        self.uses = _uses(stream)
        self.cuts = self._cuts(stream)

    def _cuts(self, stream: AllocationStream) -> list[tuple[int, str | None]]:
        """Where playing stops: (events before it, the mark's name, EMPTY or None), in order.

        At a cut that is no mark, blocks come back whose other streams have finished by then, and
        an event of a tensor without bytes is passed over.
        """
        cuts: list[tuple[int, str | None]] = [(end, name) for end, name in stream.marks]
        cuts += [(end, EMPTY) for end in stream.empties]
        cuts += [(end, None) for end in self.uses.values() if end < UNTIL_DONE]
        if 0 in self.units:
            empty = (i for i, e in enumerate(self.events) if not self.units[max(e, ~e)])
            cuts += [(at, None) for i in empty for at in (i, i + 1)]
        return sorted(cuts, key=lambda cut: cut[0])


def _uses(stream: AllocationStream) -> dict[int, int]:
    """Tensors used on other streams -> events after which these are done, none before the free."""
    if not stream.uses:
        return {}
    homes = stream.streams or [0] * len(stream.sizes)
    freed = {~event: at + 1 for at, event in enumerate(stream.events) if event < 0}
    uses: dict[int, int] = {}
    for tensor, other, end in stream.uses:
        if other != homes[tensor]:
            end = UNTIL_DONE if end == UNTIL_MARK else max(end, freed.get(tensor, 0))
            uses[tensor] = max(end, uses.get(tensor, 0))
    return uses


def _pools(units: list[int], streams: list[int]) -> list[int]:
    """The pool of each tensor: two for each stream, large (even) and small (odd)."""
    if not streams:
        return [int(need <= SMALL) for need in units]
    rank = {stream: 2 * i for i, stream in enumerate(sorted(set(streams)))}
    return [rank[s] + (need <= SMALL) for need, s in zip(units, streams, strict=True)]
