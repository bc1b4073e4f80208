"""Allocator histories recorded on a GPU, in a small format: requests, and reserved memory.

A file has one stream of requests and every run that was recorded with it (settings, caps), since
torch requests the same bytes in the same order under any settings. Numbers are written as
differences, so that they compress.

Usage: python -m tests.pytorch.replay.recorded FOLDER packs the raw histories of a folder (JSON,
gzip):
{"id", "torch", "events": [[action, address, size, stream, frame, time]...],
"marks": [[time, ...]...], "phases", "case", "retries"}, as torch's memory snapshot records them.
"""

from __future__ import annotations

import gzip
import json
import sys
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from msgspec import Struct

from gpu_mem_calculator.pytorch.replay.stream import AllocationStream

HISTORIES = Path(__file__).parent / "histories"
PAGE = 2 * 2**20
GPU = "NVIDIA H200"


class Run(Struct):
    """One recorded run: its settings, and the allocator's statistics and segments."""

    name: str
    alloc_conf: str
    cap_bytes: int | None
    retries: int
    phases: dict[str, tuple[int, int, int]]  # peak, alive at the end, peak reserved
    changes: list[tuple[int, int]]  # (event, pages reserved from then on)
    pages: list[int]  # where each new segment was put, in pages of 2 MiB

    def reserved_steps(self, num_events: int) -> list[int]:
        """Reserved bytes after each event."""
        steps: list[int] = []
        for (event, pages), (until, _) in pairwise([*self.changes, (num_events, 0)]):
            steps += [pages * PAGE] * (until - event)
        return steps


def load(name: str) -> tuple[AllocationStream, dict[str, Run]]:
    """A stream and its recorded runs by name."""
    data = json.loads(gzip.decompress((HISTORIES / f"{name}.json.gz").read_bytes()))
    events: list[int] = []
    tensors = 0
    for back in data["events"]:
        events.append(~(tensors - back) if back else tensors)
        tensors += not back
    stream = AllocationStream.of(
        sizes=[data["sizes"][index] for index in data["tensors"]],
        events=events,
        streams=data["streams"],
        marks=[(end, label) for end, label in data["marks"]],
    )
    return stream, {run["name"]: _run(run) for run in data["runs"]}


def _run(data: dict[str, Any]) -> Run:
    """A run, with its numbers summed up from differences."""
    events, pages = accumulate(data["events"]), accumulate(data["reserved"])
    return Run(
        data["name"],
        data["alloc_conf"],
        data["cap_bytes"],
        data["retries"],
        {name: (peak, alive, reserved) for name, (peak, alive, reserved) in data["phases"].items()},
        list(zip(events, pages, strict=True)),
        list(accumulate(data["pages"])),
    )


def differences(numbers: list[int]) -> list[int]:
    """Each number minus the one before it."""
    return [b - a for a, b in pairwise([0, *numbers])]


def pack(raw: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A raw history as (the stream, the run)."""
    back: list[int] = []
    sizes: list[int] = []
    streams: list[int] = []
    marks: list[tuple[int, str]] = []
    changes: list[tuple[int, int]] = []
    bases: list[int] = []
    alive: dict[int, int] = {}
    ends = [(mark[0], name) for mark, name in zip(raw["marks"], raw["phases"], strict=True)]
    reserved = 0
    for action, address, size, stream, _, time in raw["events"]:
        while len(marks) < len(ends) and time > ends[len(marks)][0]:
            marks.append((len(back), ends[len(marks)][1]))
        if action in ("alloc", "free_completed"):
            if not changes or changes[-1][1] != reserved:
                changes.append((len(back), reserved))
            back.append(0 if action == "alloc" else len(sizes) - alive.pop(address))
        if action == "alloc":
            alive[address] = len(sizes)
            sizes.append(size)
            streams.append(stream)
        elif action in ("segment_alloc", "segment_map"):
            reserved += size // PAGE
            bases += [address // PAGE] * (action == "segment_alloc")
        elif action in ("segment_free", "segment_unmap"):
            reserved -= size // PAGE
    marks += [(len(back), name) for _, name in ends[len(marks) :]]
    table = sorted(set(sizes))
    index = {size: i for i, size in enumerate(table)}
    rank = {stream: i for i, stream in enumerate(sorted(set(streams)))}
    whole = {
        "torch": raw["torch"],
        "gpu": GPU,
        "sizes": table,
        "tensors": [index[size] for size in sizes],
        "marks": marks,
        "events": back,
        "streams": [rank[stream] for stream in streams] if len(rank) > 1 else [],
    }
    lowest = min(bases, default=0)
    run = {
        "alloc_conf": raw["case"].get("alloc_conf") or "",
        "cap_bytes": raw["case"].get("cap_bytes"),
        "retries": raw["retries"],
        "phases": {
            k: [v["peak"], v["alloc"], v["peak_reserved"]] for k, v in raw["phases"].items()
        },
        "events": differences([event for event, _ in changes]),
        "reserved": differences([pages for _, pages in changes]),
        "pages": differences([base - lowest for base in bases]),
    }
    return whole, run


def main(folder: str) -> None:
    """Pack a folder of raw histories, named `stream@run.json.gz` or `stream.json.gz`."""
    packed: dict[str, dict[str, Any]] = {}
    for path in sorted(Path(folder).glob("*.json.gz")):
        name, _, variant = path.name.removesuffix(".json.gz").partition("@")
        whole, run = pack(json.loads(gzip.decompress(path.read_bytes())))
        runs = packed.setdefault(name, {**whole, "runs": []})
        if any(runs[key] != value for key, value in whole.items()):
            raise ValueError(f"{path.name} asks for other bytes than its stream's first run")
        runs["runs"].append({"name": variant or "plain", **run})
    for name, data in packed.items():
        text = json.dumps(data, separators=(",", ":"))
        target = HISTORIES / f"{name}.json.gz"
        target.write_bytes(gzip.compress(text.encode(), 9, mtime=0))


if __name__ == "__main__":
    main(sys.argv[1])
