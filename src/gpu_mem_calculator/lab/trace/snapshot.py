"""A traced run as PyTorch's memory snapshot, for its memory viewer.

The dictionary is the one that torch.cuda.memory._snapshot() documents and _dump_snapshot() pickles.
The events and addresses come from the replay of the allocator; nothing has run on a GPU.
"""

from __future__ import annotations

import pickle
from bisect import bisect_right, insort
from collections.abc import Sequence
from functools import cache
from typing import Any

from ...pytorch.replay.allocator import ReplayRun
from ...pytorch.replay.blocks import ADDRESS, SHIFT, SPAN, SPREAD
from ...pytorch.replay.plan import ReplayPlan
from ...pytorch.replay.rounding import ROUND_LARGE, UNIT
from ...pytorch.replay.settings import AllocatorSettings
from ...pytorch.replay.stream import AllocationStream
from ...runfile.text.files import write_file
from .storages import StorageMaker

BASE = 0x7000_0000_0000
"""The range of addresses that CUDA gives to a process begins about here."""
PROTOCOL = 4
"""The viewer reads pickles of protocol 2 to 4."""
PAGE = ROUND_LARGE * UNIT
Entry = dict[str, Any]
Frames = list[Entry]


Makers = Sequence[StorageMaker]
Settings = AllocatorSettings | None


def write_snapshot(
    file: str, stream: AllocationStream, makers: Makers, settings: Settings = None
) -> None:
    """Write the snapshot that torch would have after this run to a file."""
    data = snapshot(stream, makers, settings)
    write_file(file, pickle.dumps(data, protocol=PROTOCOL), "--snapshot")


def snapshot(stream: AllocationStream, makers: Makers, settings: Settings = None) -> dict[str, Any]:
    """What torch.cuda.memory._snapshot() returns: every event, and the segments at the end."""
    settings = settings or AllocatorSettings()
    history = AllocatorHistory(stream, makers, settings)
    history.play()
    return {
        "segments": history.segments(),
        "device_traces": [history.events],
        "allocator_settings": _settings(settings),
        "external_annotations": history.annotations,
    }


def _settings(settings: AllocatorSettings) -> Entry:
    """The allocator's settings by torch's names."""
    divisions = enumerate(settings.roundup_power2_divisions)
    return {
        "max_split_size": -1 if settings.max_split_bytes is None else settings.max_split_bytes,
        "garbage_collection_threshold": settings.garbage_collection_threshold,
        "expandable_segments": settings.expandable_segments,
        "roundup_power2_divisions": {str(1 << power): number for power, number in divisions},
    }


def frames(maker: StorageMaker) -> Frames:
    """The stack frames of an allocation: the operation at its line, then its module."""
    file, _, number = maker.line.rpartition(":")
    name = f"{maker.op} (backward)" if maker.backward else maker.op
    stack = [{"filename": file or "torch", "line": int(number or 0), "name": name}]
    if maker.module:
        stack.append({"filename": "module", "line": 0, "name": maker.module})
    return stack


class AllocatorHistory:
    """Replays a stream event by event and records what the allocator did."""

    def __init__(
        self, stream: AllocationStream, makers: Makers, settings: AllocatorSettings
    ) -> None:
        self.stream, self.makers = stream, makers
        self.plan = ReplayPlan(stream, settings)
        self.player = ReplayRun(self.plan)
        self.cache = self.player.cache
        self.expandable = settings.expandable_segments
        self.ids = sorted(set(stream.streams)) or [0]
        self.events: list[Entry] = []
        self.annotations: list[Entry] = []
        self.starts: list[int] = []  # the start of each segment, in the replay's addresses
        self.pools: dict[int, int] = {}  # segment -> its pool
        self.sizes: dict[int, int] = {}  # segment -> its units
        self.alive: dict[int, Frames] = {}  # tensor -> the frames of its allocation
        self._frames = cache(frames)

    def play(self) -> None:
        """Replay every event of the stream, and annotate the phases."""
        marks, start = list(self.stream.marks), 0
        for index, event in enumerate(self.stream.events):
            pending = set(self.cache.kept)
            number = event if event >= 0 else ~event
            self.player.advance(index + 1)
            if self.stream.sizes[number]:
                self._event(event, number)
            for other in pending - self.cache.kept:
                self._note("free_completed", other)
            while marks and marks[0][0] <= index + 1:
                _, name = marks.pop(0)
                self._phase(name, start)
                start = len(self.events)

    def _event(self, event: int, number: int) -> None:
        if event >= 0:
            self._allocated(number)
            return
        self._note("free_requested", number)
        if number not in self.cache.kept:
            self._note("free_completed", number)
        del self.alive[number]

    def _allocated(self, number: int) -> None:
        stack = self.alive[number] = self._frames(self.makers[number])
        pool = self.plan.pool_of[number]
        start = self.cache.tensors[number] & ADDRESS
        if self.expandable:
            self._record_growth(pool, stack)
        elif start in self.cache.segments and start not in self.pools:
            self._segment(pool, start, self.cache.segments[start])
            self._add("segment_alloc", start, self.sizes[start] * UNIT, pool, stack)
        self._note("alloc", number)

    def _record_growth(self, pool: int, stack: Frames) -> None:
        """Record by how much a pool's segment grew; it begins at a multiple of twice SPAN."""
        end = self.cache.gaps[pool][0]
        start = end - end % (2 * SPAN)
        before = self.sizes.get(start, 0)
        if end - start > before:
            self._segment(pool, start, end - start)
            self._add("segment_map", start + before, (end - start - before) * UNIT, pool, stack)

    def _segment(self, pool: int, start: int, units: int) -> None:
        if start not in self.pools:
            insort(self.starts, start)
        self.pools[start], self.sizes[start] = pool, units

    def _note(self, action: str, number: int) -> None:
        """Record an event of one tensor; torch records the requested size."""
        stack = self._frames(self.makers[number])
        start, pool = self.cache.tensors[number] & ADDRESS, self.plan.pool_of[number]
        self._add(action, start, self.stream.sizes[number], pool, stack)

    def _add(self, action: str, start: int, size: int, pool: int, stack: Frames) -> None:
        self.events.append(
            {
                "action": action,
                "addr": self.address(start),
                "size": size,
                "stream": self.ids[pool // 2],
                "time_us": len(self.events),
                "frames": stack,
            }
        )

    def _phase(self, name: str, start: int) -> None:
        for stage, when in (("START", start), ("END", len(self.events))):
            self.annotations.append({"stage": stage, "name": name, "time_us": when, "device": 0})

    def address(self, start: int) -> int:
        """A replay's address in bytes; segments of cudaMalloc begin at multiples of 2 MiB."""
        if self.expandable:
            return BASE + start * UNIT
        segment = self.starts[bisect_right(self.starts, start) - 1]
        return BASE + segment // SPREAD * PAGE + (start - segment) * UNIT

    def segments(self) -> list[Entry]:
        """Every segment at the end of the run, with its blocks."""
        blocks: dict[int, list[Entry]] = {start: [] for start in self.starts}
        everything: list[tuple[int, int, str, Frames]] = [
            (block, 0, "inactive", []) for block in self.cache.starts.values()
        ]
        states = dict.fromkeys(self.alive, "active_allocated")
        states |= dict.fromkeys(self.cache.kept, "active_pending_free")
        for number, state in states.items():
            block, stack = self.cache.tensors[number], self._frames(self.makers[number])
            everything.append((block, self.stream.sizes[number], state, stack))
        for block, requested, state, stack in sorted(everything, key=lambda one: one[0] & ADDRESS):
            start = block & ADDRESS
            segment = self.starts[bisect_right(self.starts, start) - 1]
            blocks[segment].append(
                {
                    "address": self.address(start),
                    "size": (block >> SHIFT) * UNIT,
                    "requested_size": requested,
                    "state": state,
                    "frames": stack,
                }
            )
        return [self._segment_entry(start, inside) for start, inside in blocks.items()]

    def _segment_entry(self, start: int, blocks: list[Entry]) -> Entry:
        pool = self.pools[start]
        active = [block for block in blocks if block["state"] != "inactive"]
        used = [block for block in active if block["state"] == "active_allocated"]
        return {
            "device": 0,
            "address": self.address(start),
            "total_size": self.sizes[start] * UNIT,
            "allocated_size": sum(block["size"] for block in used),
            "active_size": sum(block["size"] for block in active),
            "requested_size": sum(block["requested_size"] for block in active),
            "stream": self.ids[pool // 2],
            "segment_type": "small" if pool % 2 else "large",
            "segment_pool_id": (0, 0),
            "is_expandable": self.expandable,
            "frames": [],
            "blocks": blocks,
        }
