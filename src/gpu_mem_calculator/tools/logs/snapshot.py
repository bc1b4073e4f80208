"""torch's memory snapshots as text: what each GPU held, how it ran out, and who made the rest.

Sources: pytorch torch/cuda/memory.py, torch/csrc/cuda/Module.cpp and memory_snapshot.cpp, 2.1 to
2.13. An entry of the trace says the bytes that were asked for; those allocated are rounded up.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct, field

from ...runfile.text.files import decode_printed, is_pickle
from .pickled import DeviceTrace, SnapshotError, SnapshotReader

BEGIN = "GPU {} in torch's memory snapshot: "
MOST_BLOCKS = 4 * 10**6
MOST_GROUPS, MOST_FRAMES, SHOWN = 5, 200, 200  # shown; of a stack; characters of a name
INSIDE = re.compile(
    r"^(?:void |auto )?(?:c10|at|torch::(?:unwind|CapturedTraceback))::|::gather_with_cpp"
    r"|(?<!std::)[aA]lloc"
)
"""Frames of C++ that every allocation has; std::allocator stands in what an operator takes."""


def _whole(given: Mapping[str, Any], key: str) -> int:
    """A whole number of a dict; 0 for what is none, or none of bytes."""
    value = given.get(key)
    return value if type(value) is int and 0 <= value < 2**63 else 0


def _dicts(given: Any) -> Iterator[Mapping[str, Any]]:
    return (one for one in given if type(one) is dict) if type(given) is list else iter(())


class DeviceMemory(Struct):
    """What the segments of a GPU have, in bytes, and its live blocks: bytes and count by stack."""

    allocated: int = 0
    active: int = 0
    reserved: int = 0
    requested: int = 0
    largest_free: int = 0
    private: int = 0
    live: defaultdict[int, list[Any]] = field(default_factory=lambda: defaultdict(_no_blocks))

    def add(self, segment: Mapping[str, Any]) -> None:
        """One more segment."""
        total = _whole(segment, "total_size")
        self.reserved += total
        self.allocated += _whole(segment, "allocated_size")
        self.active += _whole(segment, "active_size")
        pool = segment.get("segment_pool_id")
        self.private += total if type(pool) is list and any(pool) else 0
        for block in _dicts(segment.get("blocks")):
            size, state = _whole(block, "size"), block.get("state")
            if state == "inactive":
                self.largest_free = max(self.largest_free, size)
            elif state == "active_allocated":
                self.requested += _whole(block, "requested_size") or size
                stack = block.get("frames")
                group = self.live[stack if type(stack) is int else -id(stack)]
                group[:] = group[0] + size, group[1] + 1, stack


def _no_blocks() -> list[Any]:
    return [0, 0, None]


def snapshot_text(data: bytes) -> str:
    """A memory snapshot as the lines that `torch.toml` knows, each stack in front of its line."""
    reader = SnapshotReader(data)
    whole = reader.read()
    given = {"segments": whole} if type(whole) is list else whole
    if type(given) is not dict or type(given.get("segments")) is not list:
        raise SnapshotError("it has no segments")
    memory: defaultdict[int, DeviceMemory] = defaultdict(DeviceMemory)
    blocks = 0
    for segment in _dicts(given["segments"]):
        blocks += len(segment["blocks"]) if type(segment.get("blocks")) is list else 0
        if blocks > MOST_BLOCKS:
            raise SnapshotError(f"it has more than {MOST_BLOCKS:,} blocks")
        memory[_whole(segment, "device")].add(segment)
    traces = {}
    for number, trace in enumerate(given.get("device_traces") or ()):
        if type(trace) is list and trace and type(trace[0]) is DeviceTrace:
            traces[number] = trace[0]
    lines: list[str] = []
    for gpu in sorted({*memory, *traces}):
        lines += _device_lines(reader, gpu, memory[gpu], traces.get(gpu, DeviceTrace()))
    return "\n".join(lines or [BEGIN.format(0) + "it is empty"])


def _device_lines(
    reader: SnapshotReader, gpu: int, memory: DeviceMemory, trace: DeviceTrace
) -> Iterator[str]:
    """What one GPU held, how it ran out, and the largest of what was live."""
    begin = BEGIN.format(gpu)
    highest = ""
    if trace.events:
        before = _whole(trace.last, "time_us") - _whole(trace.top, "time_us")
        highest = (
            f"; highest {memory.requested - trace.held + trace.highest} bytes, as asked for, at"
            f" event {trace.highest_event} of {trace.events}"
            + (f", {before / 1e6:.3f} seconds before the last" if trace.top and before > 0 else "")
        )
    yield (
        f"{begin}allocated {memory.allocated} bytes, active {memory.active} bytes, reserved"
        f" {memory.reserved} bytes, unallocated {memory.reserved - memory.allocated} bytes, largest"
        f" free block {memory.largest_free} bytes, private pools {memory.private} bytes{highest}"
    )
    made: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for size, count, stack in memory.live.values():
        words = _made(reader.frames(stack))
        made[words] += size
        counts[words] += count
    for words, size in made.most_common(MOST_GROUPS):
        yield f"{begin}live {size} bytes in {counts[words]} allocations made {words}"
    if trace.oom is not None:
        entry, held, reserved = trace.oom
        allocated = memory.allocated - trace.held + held
        total = memory.reserved - trace.reserved + reserved
        yield from _stack(reader.frames(entry.get("frames")))
        yield (
            f"{begin}no room for {_whole(entry, 'size')} bytes; free"
            f" {_whole(entry, 'device_free')} bytes, allocated {allocated} bytes, reserved {total}"
            f" bytes, unallocated {max(total - allocated, 0)} bytes"
        )


def _told(frames: list[Mapping[str, Any]]) -> list[tuple[str, int, str]]:
    """The frames of Python, the innermost first; those of C++ where there are no others, as in the
    threads of the backward pass. Of C++ those that every allocation has are left out.
    """
    read = [
        (_plain(one.get("filename")), _whole(one, "line"), _plain(one.get("name")))
        for one in frames
    ]
    python = [one for one in read if one[0].endswith(".py") or one[0].startswith("<")]
    return (python or [one for one in read if not INSIDE.search(one[2])])[:MOST_FRAMES]


def _plain(text: Any) -> str:
    """A name in one line, as a stack can have it."""
    shown = text[:SHOWN] if type(text) is str else ""
    return "".join(one if one.isprintable() and one != '"' else "?" for one in shown) or "?"


def _stack(frames: list[Mapping[str, Any]]) -> Iterator[str]:
    """A stack as Python prints it, with an empty line for each frame's code."""
    told = _told(frames)
    if told:
        yield "Traceback (most recent call last):"
        for file, number, name in reversed(told):
            yield f'  File "{file}", line {number}, in {name}'
        yield ""


def _made(frames: list[Mapping[str, Any]]) -> str:
    """Where an allocation was made: the innermost frame, and the one outside torch that called."""
    told = _told(frames)
    if not told:
        return "where no stack was recorded"
    inner, *outer = (
        f"in {name} ({'/'.join(file.split('/')[-2:])}:{number})"
        for file, number, name in (told[0], *(one for one in told if "/torch/" not in one[0]))
    )
    return inner if not outer or outer[0] == inner else f"{inner}, called {outer[0]}"


def is_snapshot_text(text: str) -> bool:
    """Whether a text is a memory snapshot's lines."""
    return text.startswith("GPU ") and "in torch's memory snapshot: " in text[:SHOWN]


def text_of(data: bytes) -> str:
    """What a program printed, or a memory snapshot's lines."""
    return snapshot_text(data) if is_pickle(data) else decode_printed(data)
