"""The GPUs of this machine, as nvidia-smi lists them, and the memory of its host."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from math import prod
from pathlib import Path
from typing import Any

from ..estimates.busy import BusyCards, busy_lines, other_card_words, unlike_words
from ..ledger.units import GIB
from ..runfile.resolve.hardware import UNIFIED
from ..runfile.text.errors import InputError, print_to_stderr
from ..tools.launchers.launch import visible_devices
from ..tools.logs.nvidia_smi import SmiCard, read_cards

COLUMNS = "index,uuid,name,memory.total,memory.reserved,memory.used,memory.free"
QUERY = ("nvidia-smi", f"--query-gpu={COLUMNS}", "--format=csv")
APPS = ("--query-compute-apps=gpu_uuid,pid,process_name,used_memory", "--format=csv")
RESERVED = ",memory.reserved"  # which drivers before 510 do not know
SECONDS = 10
COUNTS = (
    *("hardware.num_gpus", "inference.tensor_parallel_size"),
    *("inference.pipeline_parallel_size", "inference.data_parallel_size"),
)
PASTED, HERE, GIVEN = "--nvidia-smi", "here", "-"
ROOT = Path("/")
LIMITS = ("memory.max", "memory.limit_in_bytes")  # of a cgroup, version 2 and 1
NO_LIMIT = 2**60  # version 1 writes a number near 2^63 where there is none


def this_machine() -> tuple[dict[str, Any], BusyCards]:
    """The hardware section of this machine and its cards as they are; empty where it has no GPU of
    NVIDIA.
    """
    older = tuple(word.replace(RESERVED, "") for word in QUERY)
    text = _printed(QUERY) or _printed(older)
    try:
        cards = read_cards(f"{text}\n{_printed((QUERY[0], *APPS))}") if text else []
    except InputError:
        cards = []
    if not cards:
        return {}, BusyCards()
    section = {**card_section(cards), **host_section(), **system_section()}
    if (cards[0].row or {}).get("kind") == UNIFIED:
        section |= available_section()
    return section, BusyCards(tuple(cards), visible_devices(os.environ))


def _printed(words: tuple[str, ...]) -> str:
    """What a program prints; nothing where it fails."""
    try:
        found = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return found.stdout


def pasted_cards(name: str) -> BusyCards:
    """The cards in a file that nvidia-smi wrote, or on standard input; those of this machine."""
    if name == HERE:
        _, busy = this_machine()
        if not busy.cards:
            raise InputError(f"{PASTED} {HERE}: nvidia-smi lists no card on this machine")
        return busy
    try:
        text = sys.stdin.read() if name == GIVEN else Path(name).read_text("utf-8", "replace")
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise InputError(f"{PASTED} {name}: {why}") from None
    try:
        return BusyCards(tuple(read_cards(text)))
    except InputError as error:
        raise InputError(f"{PASTED} {name}: {one}" for one in error.problems) from None


def take_pasted(args: argparse.Namespace) -> None:
    """Put the cards in the file of --nvidia-smi into the options: the card, unless they name one,
    and what others hold of those that are used. Who they are is said below the answer, or beside
    its data.
    """
    busy = pasted_cards(args.nvidia_smi)
    given = vars(args)
    gpu, counts = ("gpu", ("gpus",)) if "gpu" in given else ("hardware.gpu", COUNTS)
    count = given.get(counts[0]) or prod(given.get(name) or 1 for name in counts[1:])
    used = busy.used((), count)
    section, unlike = card_section(used), unlike_words(used)
    said = [*filter(None, [other_card_words(used, given[gpu])]), *busy_lines(used)]
    if args.format == "table" and not given.get("quiet"):
        args.held = said
    else:
        print_to_stderr(*said, begins="")
    if given[gpu] or given.get("hardware.gpu_memory_gb") or given.get("gpu_mem"):
        section = {}
    elif unlike:
        raise InputError(f"{PASTED} {args.nvidia_smi}: {unlike}; name the one to count with --gpu")
    elif "gpu" in section:
        setattr(args, gpu, section.pop("gpu"))
    section["used_memory_bytes"] = busy.held((), count)
    args.settings = [*(f"hardware.{key}={size}" for key, size in section.items()), *args.settings]


def card_section(cards: Sequence[SmiCard]) -> dict[str, Any]:
    """The hardware section of the smallest of some cards."""
    least = min(cards, key=lambda card: card.total or 0, default=None)
    if least is None:
        return {}
    return {**least.section, "os": "windows"} if least.desktop else least.section


def host_section(root: Path = ROOT) -> dict[str, Any]:
    """What processes of this machine may take of its memory, and where that stands.

    The least of MemTotal and the limits of the process's cgroup and of those above it.
    """
    found = list(_host_sizes(root))
    if not found:
        return {}
    size, said = min(found)
    return {"node_memory_gb": size / GIB, "node_memory_read_from": said}


def system_section(root: Path = ROOT) -> dict[str, str]:
    """The system, where the driver spills on it."""
    if sys.platform == "win32":
        return {"os": "windows"}
    kernel = " ".join(_lines(root / "proc/version")).lower()
    return {"os": "wsl"} if "microsoft" in kernel else {}


def available_section(root: Path = ROOT) -> dict[str, Any]:
    """What is free of a memory that card and host share, as the system has it: with the pages of
    files that it gives back, which cudaMemGetInfo leaves out.
    """
    for text in _lines(root / "proc/meminfo"):
        words = text.split()
        if words[:1] == ["MemAvailable:"] and words[1].isdecimal():
            return {"available_memory_bytes": int(words[1]) * 1024}
    return {}


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
