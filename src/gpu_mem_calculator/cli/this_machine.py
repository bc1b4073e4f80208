"""The GPUs of this machine, as nvidia-smi lists them."""

from __future__ import annotations

import subprocess
from typing import Any

from ..catalog.cards import find_card
from ..ledger.units import MIB

QUERY = ("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits")
SECONDS = 10


def this_machine() -> dict[str, Any]:
    """The hardware section of this machine; empty where it has no GPU of NVIDIA."""
    try:
        found = subprocess.run(QUERY, capture_output=True, text=True, timeout=SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return {}
    return machine_section(found.stdout)


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
