"""What a run asks of the allocator: tensors made and freed, in order."""

from __future__ import annotations

from msgspec import Struct, field

UNTIL_MARK = -1
"""A use on another stream that ends when the program next waits for the GPU (the next mark)."""


class AllocationStream(Struct):
    """Allocations and frees of one process, in the order in which the host asks for them.

    - `sizes`: bytes that tensor i asks for (0: torch asks the allocator for nothing).
    - `events`: i >= 0 makes tensor i; ~i (negative) frees it.
    - `streams`: the CUDA stream that tensor i is made on, 0 is the default; empty: all on 0.
    - `marks`: (number of events before it, name): the end of a phase, where the host waits for
      the GPU and peak statistics start anew.
    - `empties`: numbers of events before which `empty_cache` was called: every segment that is not
      in use goes back to the driver.
    - `uses`: `record_stream` calls, as (tensor, stream, end). After its free, the block is kept
      back until `end` events have passed or the next mark (`UNTIL_MARK`), or until the allocator
      waits for all streams because it runs short.
    """

    sizes: list[int]
    events: list[int]
    streams: list[int] = field(default_factory=list)
    marks: list[tuple[int, str]] = field(default_factory=list)
    uses: list[tuple[int, int, int]] = field(default_factory=list)
    empties: list[int] = field(default_factory=list)
