"""The GPUs of this machine, as nvidia-smi lists them, and the memory of its host."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..catalog.cards import find_card
from ..ledger.units import GIB, MIB

QUERY = ("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits")
SECONDS = 10
ROOT = Path("/")
LIMITS = ("memory.max", "memory.limit_in_bytes")  # of a cgroup, version 2 and 1
NO_LIMIT = 2**60  # version 1 writes a number near 2^63 where there is none


def this_machine() -> dict[str, Any]:
    """The hardware section of this machine; empty where it has no GPU of NVIDIA."""
    try:
        found = subprocess.run(QUERY, capture_output=True, text=True, timeout=SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return {}
    section = machine_section(found.stdout)
    return {**section, **host_section()} if section else {}


def host_section(root: Path = ROOT) -> dict[str, Any]:
    """What processes of this machine may take of its memory, and where that stands.

    The least of MemTotal and the limits of the process's cgroup and of those above it.
    """
    found = list(_host_sizes(root))
    if not found:
        return {}
    size, said = min(found)
    return {"node_memory_gb": size / GIB, "node_memory_read_from": said}


def _host_sizes(root: Path) -> Iterator[tuple[int, str]]:
    for text in _lines(root / "proc/meminfo"):
        words = text.split()
        if words[:1] == ["MemTotal:"] and words[1].isdecimal():
            yield int(words[1]) * 1024, "MemTotal of this machine"
    for text in _lines(root / "proc/self/cgroup"):
        _, _, rest = text.partition(":")
        kinds, _, path = rest.partition(":")
        if kinds and "memory" not in kinds.split(","):
            continue
        top = root / "sys/fs/cgroup" / ("memory" if kinds else "")
        place = top / path.strip("/")
        for folder in (place, *place.parents):
            yield from _limits(folder)
            if folder == top:
                break


def _limits(folder: Path) -> Iterator[tuple[int, str]]:
    for name in LIMITS:
        for text in _lines(folder / name):
            if text.isdecimal() and int(text) < NO_LIMIT:
                yield int(text), f"{name} of this machine's cgroup"


def _lines(path: Path) -> list[str]:
    """The lines of a file; none where it cannot be read."""
    try:
        return path.read_text("utf-8", "replace").splitlines()
    except OSError:
        return []


def machine_section(text: str) -> dict[str, Any]:
    """The hardware section of nvidia-smi's lines, each with a name and MiB; the smallest card
    counts.
    """
    cards = []
    for line in text.splitlines():
        name, _, mebibytes = line.rpartition(",")
        if mebibytes.strip().isdigit():
            cards.append((int(mebibytes), name.strip()))
    if not cards:
        return {}
    memory, name = min(cards)
    row = find_card(name)
    size = {"gpu_memory_bytes": memory * MIB}
    return {"gpu": row["name"]} | size if row else size
