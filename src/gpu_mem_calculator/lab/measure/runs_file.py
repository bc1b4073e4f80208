"""The file of measured runs: one JSON object on each line, written to disk one by one.

A row keeps its tries: each run under a cap, whether it survived, and the phase it died in. Survival
is not monotone in the cap, because torch's allocator caches other segments under each.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from io import FileIO
from pathlib import Path
from typing import Any

from ...runfile.text.errors import InputError
from ...runfile.text.files import check_writable

Row = dict[str, Any]
NO_MEMORY = "out of memory"


class RunsFile:
    """A file that rows are added to.

    A last line that was not fully written is removed when the file is opened; `repaired` says so.
    Any other line that is not a JSON object is refused with a sentence.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.repaired = ""
        self.rows = self._read()

    def _read(self) -> list[Row]:
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            check_writable(self.path, "--append")
            return []
        except OSError as error:
            raise InputError(f"--append {self.path}: cannot be read, {error.strerror}") from None
        check_writable(self.path, "--append")
        whole, _, rest = data.rpartition(b"\n")
        if rest.strip():
            if _parse(rest) is None:
                self._truncate(len(data) - len(rest))
                self.repaired = f"{self.path}: the last line was incomplete and is removed"
            else:  # complete, but without its end of line
                self._append_or_raise(b"\n")
                whole = data
        rows = []
        for number, line in enumerate(whole.split(b"\n"), 1):
            row = _parse(line) if line.strip() else {}
            if row is None:
                fix = "give a file that measure wrote, or a new one"
                raise InputError(f"--append {self.path} line {number}: not a measured run; {fix}")
            rows += [row] if row else []
        return rows

    def _truncate(self, length: int) -> None:
        with self.path.open("r+b") as file:
            file.truncate(length)
            os.fsync(file.fileno())

    def ids(self, *, failed: bool = True) -> set[str]:
        """The ids in the file; without `failed`, only those of runs that did not fail."""
        rows = [row for row in self.rows if failed or "failed" not in row]
        return {str(row["id"]) for row in rows if "id" in row}

    def add(self, row: Mapping[str, Any]) -> None:
        """Append a row; returns when it is on disk."""
        self._append_or_raise(json.dumps(row, ensure_ascii=False).encode("utf-8") + b"\n")
        self.rows.append(dict(row))

    def _append_or_raise(self, data: bytes) -> None:
        """Append in one write, so that lines of several processes do not mix."""
        try:
            with self.path.open("ab", buffering=0) as file:
                self._append(file, data)
        except OSError as error:
            reason = error.strerror
            raise InputError(f"--append {self.path}: cannot be written, {reason}") from None

    def _append(self, file: FileIO, data: bytes) -> None:
        """Write all of the data, or truncate the file to its old size, as on a full disk."""
        written = 0
        try:
            while written < len(data):
                written += file.write(data[written:]) or 0
            os.fsync(file.fileno())
        except OSError:
            if written < len(data) and file.tell() == os.fstat(file.fileno()).st_size:
                os.ftruncate(file.fileno(), file.tell() - written)
            raise


def _parse(line: bytes) -> Row | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


def with_try(row: Row, cap_bytes: int | None) -> Row:
    """The row of a run that ended, with its try where it ran under a cap."""
    return row if cap_bytes is None else {**row, "tries": [survived_try(row, cap_bytes)]}


def survived_try(row: Row, cap_bytes: int) -> dict[str, Any]:
    """The try of a run that ended under a cap."""
    phases = row["phases"].values()
    return {
        "cap_bytes": cap_bytes,
        "survived": True,
        "retries": row["measured"].get("alloc_retries", 0),
        "allocated_bytes": max((p["peak_bytes"] for p in phases), default=0),
        "reserved_bytes": max((p["reserved_bytes"] for p in phases), default=0),
    }


def failed_try(cap_bytes: int, phase: str, counters: dict[str, int], why: str) -> dict[str, Any]:
    """The try of a run that died under a cap: the phase, torch's counters then, and its error."""
    return {"cap_bytes": cap_bytes, "survived": False, "phase": phase, **counters, "why": why}


def died_of_memory(one: dict[str, Any]) -> bool:
    """Whether a try died for lack of memory, and of nothing else."""
    return not one["survived"] and one["why"].startswith(NO_MEMORY)
