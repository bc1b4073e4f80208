"""The tries of a row: each run under a cap, whether it survived, and the phase it died in.

Survival is not monotone in the cap, because torch's allocator caches other segments under each:
so a row keeps every try.
"""

from __future__ import annotations

from typing import Any

from .runs_file import Row

NO_MEMORY = "out of memory"


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
