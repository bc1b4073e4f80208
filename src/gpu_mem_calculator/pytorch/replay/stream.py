"""What a run asks of the allocator: allocations and frees of tensors, in order."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import Struct, field

# msgspec reads the annotations, and Python 3.11 has no `array[int]`
if TYPE_CHECKING:
    Integers: TypeAlias = array[int]
else:
    Integers = array

UNTIL_MARK = -1
"""The end of a use on another CUDA stream that lasts until the program next waits for the GPU, at
the next mark."""


class AllocationStream(Struct):
    """Allocations and frees of one process, in the order of the host's requests.

    `sizes` and `events` are arrays of 64-bit integers, which a replay in C reads where they are.

    - `sizes`: bytes of tensor i (0: torch requests nothing from the allocator).
    - `events`: i >= 0 allocates tensor i; ~i (negative) frees it.
    - `streams`: the CUDA stream that tensor i is allocated on, 0 is the default; empty: all on 0.
    - `marks`: (number of events before it, name): the end of a phase, where the host waits for
      the GPU and peak statistics are reset.
    - `visits`: (instant, number of events up to its end): what was written at each instant.
    - `empties`: numbers of events after which `empty_cache` was called: every segment that is not
      in use is returned to the driver.
    - `uses`: `record_stream` calls, as (tensor, CUDA stream, end). After its free, the block cannot
      be reused until `end` events have passed or the next mark (`UNTIL_MARK`), or until the
      allocator waits for all CUDA streams because it runs out of memory.
    """

    sizes: Integers = field(default_factory=partial(array, "q"))
    events: Integers = field(default_factory=partial(array, "q"))
    streams: list[int] = field(default_factory=list)
    marks: list[tuple[int, str]] = field(default_factory=list)
    visits: list[tuple[str, int]] = field(default_factory=list)
    uses: list[tuple[int, int, int]] = field(default_factory=list)
    empties: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, sizes: Iterable[int], events: Iterable[int], **rest: Any) -> AllocationStream:
        """A stream of any integers."""
        return cls(array("q", sizes), array("q", events), **rest)
