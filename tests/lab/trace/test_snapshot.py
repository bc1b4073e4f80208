"""A trace as torch's own memory snapshot."""

from __future__ import annotations

import pickle
import pickletools
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from gpu_mem_calculator.lab.trace.snapshot import snapshot, write_snapshot
from gpu_mem_calculator.pytorch.replay.replays import replay
from gpu_mem_calculator.pytorch.replay.settings import AllocatorSettings
from gpu_mem_calculator.pytorch.replay.stream import AllocationStream
from gpu_mem_calculator.runfile.text.errors import InputError

if TYPE_CHECKING:
    from gpu_mem_calculator.lab.trace.run import RunTrace

MIB = 2**20
# The opcodes that the memory viewer's reader knows.
VIEWER = {
    "APPENDS",
    "BINGET",
    "BININT",
    "BININT1",
    "BININT2",
    "EMPTY_DICT",
    "EMPTY_LIST",
    "FRAME",
    "LONG1",
    "LONG_BINGET",
    "MARK",
    "MEMOIZE",
    "PROTO",
    "SETITEMS",
    "SHORT_BINUNICODE",
    "STOP",
    "TUPLE2",
    "APPEND",
    "NEWFALSE",
    "BINPUT",
    "BINUNICODE",
    "EMPTY_TUPLE",
    "NEWTRUE",
    "NONE",
    "BINFLOAT",
    "TUPLE",
    "TUPLE1",
    "TUPLE3",
    "LONG_BINPUT",
    "SETITEM",
}


class Maker(NamedTuple):
    """As a recorder's."""

    op: str = "aten::mm"
    module: str = "model.layers.0"
    line: str = "/somewhere/model.py:12"
    backward: bool = False


def made(sizes: list[int], events: list[int], conf: str = "", **rest: Any) -> dict[str, Any]:
    """The snapshot of a stream whose tensors are all made at one line."""
    stream = AllocationStream.of(sizes, events, **rest)
    return snapshot(stream, [Maker()] * len(sizes), AllocatorSettings.parse(conf))


def actions(data: dict[str, Any]) -> list[str]:
    """What the allocator did, in order."""
    return [event["action"] for event in data["device_traces"][0]]


def test_a_block_is_asked_of_the_driver_then_given_then_freed() -> None:
    """One tensor makes a segment and a block of it, and its free has two halves, as in torch."""
    data = made([30 * MIB], [0, ~0])
    assert actions(data) == ["segment_alloc", "alloc", "free_requested", "free_completed"]


def test_sizes_are_the_requested_ones() -> None:
    """torch writes what a tensor asked for; the segment is what the driver gave."""
    segment, block = made([30 * MIB + 7], [0])["device_traces"][0]
    assert (segment["size"], block["size"]) == (32 * MIB, 30 * MIB + 7)


def test_two_blocks_of_one_segment_lie_side_by_side() -> None:
    """The second starts where the first ends."""
    events = made([2 * MIB, 3 * MIB], [0, 1])["device_traces"][0]
    first, second = (event for event in events if event["action"] == "alloc")
    assert second["addr"] - first["addr"] == 2 * MIB


def test_segments_do_not_overlap() -> None:
    """Every segment has addresses of its own, on pages of 2 MiB."""
    data = made([30 * MIB, 500 * MIB, MIB // 2, 70 * MIB], [0, 1, 2, 3])
    spans = sorted((s["address"], s["address"] + s["total_size"]) for s in data["segments"])
    assert len(spans) == 4
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))
    assert all(start % (2 * MIB) == 0 for start, _ in spans)


def test_the_end_state_has_what_was_not_freed() -> None:
    """Blocks fill their segment; those in use say where they were made."""
    (segment,) = made([2 * MIB, 3 * MIB], [0, 1, ~0])["segments"]
    assert [(b["size"], b["state"]) for b in segment["blocks"]] == [
        (2 * MIB, "inactive"),
        (3 * MIB, "active_allocated"),
        (15 * MIB, "inactive"),
    ]
    assert segment["blocks"][1]["frames"] == [
        {"filename": "/somewhere/model.py", "line": 12, "name": "aten::mm"},
        {"filename": "module", "line": 0, "name": "model.layers.0"},
    ]
    assert (segment["allocated_size"], segment["segment_type"]) == (3 * MIB, "large")


def test_streams_keep_their_segments() -> None:
    """A tensor of a side stream lies in a segment of that stream."""
    data = made([2 * MIB, 2 * MIB], [0, 1], streams=[0, 7])
    assert sorted(segment["stream"] for segment in data["segments"]) == [0, 7]


def test_a_block_that_another_stream_uses_is_freed_later() -> None:
    """record_stream parts the request to free a block from its end."""
    data = made([2 * MIB, 2 * MIB], [0, ~0, 1], uses=[(0, 7, 3)])
    assert actions(data)[2:] == ["free_requested", "alloc", "free_completed"]


def test_expandable_segments_are_mapped() -> None:
    """One segment for each pool grows page by page."""
    data = made([30 * MIB, 30 * MIB], [0, 1], "expandable_segments:True")
    assert actions(data) == ["segment_map", "alloc", "segment_map", "alloc"]
    (segment,) = data["segments"]
    assert (segment["total_size"], segment["is_expandable"]) == (60 * MIB, True)


def test_phases_are_annotations() -> None:
    """Each phase begins and ends among the events."""
    data = made([2 * MIB, 2 * MIB], [0, 1], marks=[(1, "model"), (2, "s0.opt")])
    assert [(a["name"], a["stage"], a["time_us"]) for a in data["external_annotations"]] == [
        ("model", "START", 0),
        ("model", "END", 2),
        ("s0.opt", "START", 2),
        ("s0.opt", "END", 3),
    ]


def test_a_trace_adds_up_to_what_the_replay_reserved(traced: RunTrace) -> None:
    """Segments sum to the reserved bytes, and no block is given twice."""
    data = snapshot(traced.stream, traced.makers)
    assert sum(s["total_size"] for s in data["segments"]) == replay(traced.stream).reserved_bytes
    alive: dict[int, int] = {}
    for event in data["device_traces"][0]:
        if event["action"] == "alloc":
            assert event["addr"] not in alive
            alive[event["addr"]] = event["size"]
        elif event["action"] == "free_completed":
            del alive[event["addr"]]
    used = {
        b["address"]: b["requested_size"]
        for s in data["segments"]
        for b in s["blocks"]
        if b["state"] == "active_allocated"
    }
    assert used == alive


def test_torch_reads_it(traced: RunTrace, tmp_path: Path) -> None:
    """torch's own tools accept the file: its checks of sums pass, and every line has a place."""
    viz = pytest.importorskip("torch.cuda._memory_viz")
    file = tmp_path / "run.pickle"
    write_snapshot(str(file), traced.stream, traced.makers)
    data = pickle.loads(file.read_bytes())
    assert f"segments: {len(data['segments'])}" in viz.segsum(data)
    assert "cudaMalloc" in viz.trace(data)
    assert "modeling_llama.py" in viz.memory(data, format_flamegraph=str)
    assert "local_files" in viz.trace_plot(data)


def test_the_viewer_reads_it(traced: RunTrace, tmp_path: Path) -> None:
    """The memory viewer's own reader of pickles knows every opcode in the file."""
    file = tmp_path / "run.pickle"
    write_snapshot(str(file), traced.stream, traced.makers)
    found = {opcode.name for opcode, _, _ in pickletools.genops(file.read_bytes())}
    assert found <= VIEWER


def test_a_file_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    """The folder does not exist."""
    with pytest.raises(InputError, match=r"--snapshot .* cannot be written"):
        write_snapshot(str(tmp_path / "no" / "run.pickle"), AllocationStream.of([], []), [])
