"""The replay of blocks in C, where its library was built: the same figures, many times as fast.

`native/replay.c` has the free blocks of each pool and the block of each tensor. Segments, caps and
what is released stay in Python: where no free block fits, C returns, and Python gives it a block.
Expandable segments and the collection of garbage are replayed in Python alone.
"""

from __future__ import annotations

from array import array
from ctypes import CDLL, Structure, byref, c_int64, c_void_p
from functools import cache
from typing import Any

from .blocks import ADDRESS, SHIFT
from .cache import AllocatorState
from .growth import grow
from .native_library import LIBRARY
from .plan import ReplayPlan

ABI = 1


class NativeBlock(Structure):
    """gmc_block."""

    _fields_ = (("size", c_int64), ("start", c_int64))


class NativePlan(Structure):
    """gmc_plan, with the arrays that it borrows."""

    _fields_ = (
        *((name, c_int64) for name in ("tensors", "events", "pools")),
        *((name, c_void_p) for name in ("units", "pool", "event", "waits", "least_rest")),
        *((name, c_int64) for name in ("oversize", "rounding", "unsplit")),
    )


@cache
def library() -> CDLL | None:
    """The library, if it is one of this version."""
    try:
        found = CDLL(LIBRARY)
        if found.gmc_abi() != ABI:
            return None
    except (OSError, AttributeError):
        return None
    for name in ("gmc_open", "gmc_copy"):
        getattr(found, name).restype = c_void_p
    for name in ("gmc_play", "gmc_allocated", "gmc_peak", "gmc_free_blocks"):
        getattr(found, name).restype = c_int64
    found.gmc_block_of.restype = NativeBlock
    return found


def _array(kind: str, values: Any) -> Any:
    return array(kind, values) if len(values) else array(kind, [0])


class NativeEvents:
    """A plan's arrays in the form that C reads; they live as long as the plan."""

    __slots__ = ("arrays", "freed", "struct")

    def __init__(self, plan: ReplayPlan) -> None:
        waits = bytearray(len(plan.units) + 1)
        for tensor in plan.uses:
            waits[tensor] = 1
        self.arrays = {
            "units": _array("q", plan.units),
            "pool": _array("i", plan.pool_of),
            "event": _array("q", plan.events),
            "waits": array("B", waits),
            "least_rest": _array("q", plan.least_rest),
        }
        self.struct = NativePlan(
            tensors=len(plan.units),
            events=len(plan.events),
            pools=plan.num_pools,
            oversize=plan.oversize,
            rounding=plan.rounding,
            unsplit=plan.unsplit,
            **{name: one.buffer_info()[0] for name, one in self.arrays.items()},
        )
        # tensors that other CUDA streams use, by the event that frees them
        events = enumerate(plan.events) if plan.uses else ()
        self.freed = {~event: at for at, event in events if event < 0 and ~event in plan.uses}


class NativeState(AllocatorState):
    """The state with its blocks in C; `counted`: the events whose waiting blocks are in `kept`."""

    __slots__ = ("_counted", "_library", "_state")
    in_c = True

    def __init__(self, plan: ReplayPlan, library: CDLL, cap_bytes: int | None = None) -> None:
        super().__init__(plan, cap_bytes)
        self._library, self._counted = library, 0
        if plan.native is None:
            plan.native = NativeEvents(plan)
        self._state = c_void_p(library.gmc_open(byref(plan.native.struct)))
        self._check(self._state.value)

    def __del__(self) -> None:
        """Give back what C has."""
        if self._state:
            self._library.gmc_close(self._state)

    def _check(self, whole: object) -> None:
        if not whole:
            raise MemoryError("the replay's own memory ran out")

    def copy(self) -> AllocatorState:
        """A copy, to be continued under another cap."""
        twin = NativeState.__new__(NativeState)
        AllocatorState.__init__(twin, self.plan)
        self._copy_counters(twin)
        twin._library, twin._counted = self._library, self._counted
        twin._state = c_void_p(self._library.gmc_copy(self._state))
        self._check(twin._state.value)
        return twin

    def play(self, at: int, end: int) -> int:
        """Replay events; returns where it ended: `end`, or the event that ran out of memory."""
        play, state = self._library.gmc_play, self._state
        while True:
            reached = play(state, c_int64(at), c_int64(end))
            self._check(reached >= 0)
            self._note_kept(reached)
            if reached == end or not (block := grow(self, self.plan.events[reached])):
                break
            at = reached
            self._library.gmc_give(state, c_int64(block >> SHIFT), c_int64(block & ADDRESS))
        self.allocated = self._library.gmc_allocated(state)
        self.peak = self._library.gmc_peak(state)
        return int(reached)

    def _note_kept(self, reached: int) -> None:
        """Tensors that were freed before an event, and whose blocks wait for another stream."""
        freed = self.plan.native.freed
        self.kept |= {one for one, at in freed.items() if self._counted <= at < reached}
        self._counted = max(self._counted, reached)

    def free_blocks(self, pool_index: int, least: int) -> list[int]:
        """The free blocks of a pool from a size on, in order."""
        return [block.size << SHIFT | block.start for block in self._blocks(pool_index, least)]

    def _blocks(self, pool_index: int, least: int) -> Any:
        read, at = self._library.gmc_free_blocks, (c_int64(pool_index), c_int64(least))
        blocks = (NativeBlock * read(self._state, *at, None))()
        read(self._state, *at, blocks)
        return blocks

    def pool_state(self) -> tuple[object, ...]:
        """The free blocks of all pools, to be compared."""
        return tuple(bytes(self._blocks(index, 0)) for index in range(self.plan.num_pools))

    def block_of(self, tensor: int) -> int:
        """The block of a live tensor."""
        block = self._library.gmc_block_of(self._state, c_int64(tensor))
        return int(block.size << SHIFT | block.start)

    def rename(self, window: slice, before: slice) -> None:
        """Give tensors the blocks of those of the window before."""
        first, count = window.start, window.stop - window.start
        self._library.gmc_rename(self._state, *map(c_int64, (first, before.start, count)))

    def reset_peaks(self) -> None:
        """Begin a phase."""
        super().reset_peaks()
        self._library.gmc_reset_peak(self._state)

    def remove(self, pool_index: int, block: int) -> None:
        """Take a free block out of its pool."""
        parts = (pool_index, block >> SHIFT, block & ADDRESS)
        self._library.gmc_remove(self._state, *map(c_int64, parts))

    def free_kept(self, events: int) -> None:
        """Free the kept blocks whose other CUDA streams have finished after `events` events."""
        for tensor in sorted(t for t in self.kept if self.plan.uses[t] <= events):
            self.kept.remove(tensor)
            self._check(self._library.gmc_free(self._state, c_int64(tensor)))


def state_in_c(plan: ReplayPlan, cap_bytes: int | None) -> AllocatorState | None:
    """The state at the start of a replay, in C; None where the library is none of this version."""
    found = library()
    return None if found is None else NativeState(plan, found, cap_bytes)
