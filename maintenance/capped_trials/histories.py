"""Torch's memory history of tries that died at a cap, and of tries without a cap.

Only the allocator's events are kept, compressed.

Each line of the file is a history in the form that `tests/pytorch/replay/recorded.py` packs.
"""

from __future__ import annotations

import gzip
import json
import os
import time
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from gpu_mem_calculator.lab.measure.cases import Worker
from gpu_mem_calculator.lab.measure.cases_file import MeasureCase
from gpu_mem_calculator.lab.measure.child_process import Tell
from gpu_mem_calculator.lab.measure.runs_file import Row

EVENTS = 2_000_000  # that torch keeps
LEFT_OUT = ("free_requested", "snapshot")  # a block is free when the free is completed


class History:
    """Records one run, from the start of CUDA to the death."""

    def __init__(self, case: MeasureCase, path: Path) -> None:
        self.case, self.path = case, path
        self.marks: list[list[float]] = []
        self.phases: dict[str, dict[str, int]] = {}

    def receive(self, message: Mapping[str, Any]) -> None:
        """Follow what a run tells: its start, its phases, its death."""
        if "environment" in message:
            self._record(max_entries=EVENTS, context=None, stacks="python")
        elif "phase" in message:
            self.marks.append([time.time() * 1e6])
            self.phases[message["phase"]] = {
                "peak": message["peak_bytes"],
                "alloc": message["start_next_bytes"],
                "peak_reserved": message["reserved_bytes"],
            }
        elif "died" in message:
            self.write(message["died"]["retries"])

    def _record(self, **settings: Any) -> None:
        import_module("torch").cuda.memory._record_memory_history(**settings)

    def write(self, retries: int) -> None:
        """Add the history to the file."""
        torch = import_module("torch")
        (events, *_) = torch.cuda.memory._snapshot()["device_traces"]
        data = {
            "id": self.case.id,
            "torch": torch.__version__,
            "case": {"cap_bytes": self.case.cap_bytes, "alloc_conf": self.case.alloc_conf},
            "retries": retries,
            "phases": self.phases,
            "marks": self.marks,
            "events": [_event(event) for event in events if event["action"] not in LEFT_OUT],
        }
        append(self.path, gzip.compress(json.dumps(data).encode() + b"\n"))
        append(_ids_file(self.path), f"{self.case.id}\n".encode())


def _event(event: Mapping[str, Any]) -> list[Any]:
    address = event.get("addr", 0)
    return [event["action"], address, event["size"], event["stream"], "", event["time_us"]]


def append(path: Path, data: bytes) -> None:
    """Append in one write, so that histories of several processes do not mix."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(descriptor, data)
    finally:
        os.close(descriptor)


def recording(worker: Worker, path: Path, most: int) -> Worker:
    """A worker that records runs while the file has fewer than `most` histories; of a case, one.

    Runs without a cap are recorded as well as runs that die under one.
    """

    def record(case: MeasureCase, tell: Tell) -> Row:
        known = read_ids(path)
        if len(known) >= most or case.id in known:
            return worker(case, tell)
        history = History(case, path)

        def told(message: Any) -> None:
            history.receive(message)
            tell(message)

        row = worker(case, told)
        if case.cap_bytes is None:
            history.write(retries=0)
        return row

    return record


def read_ids(path: Path) -> list[str]:
    """The ids of the histories of a file, which are listed beside it."""
    ids = _ids_file(path)
    return ids.read_text(encoding="utf-8").splitlines() if ids.exists() else []


def _ids_file(path: Path) -> Path:
    return path.with_name(path.name + ".ids")
