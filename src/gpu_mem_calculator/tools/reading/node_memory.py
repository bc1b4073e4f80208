"""The memory of a node that a command or a file names: a limit, a request, a scheduler's option."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from ...ledger.units import GIB

NODE_KEYS = ("node_memory_gb", "node_memory_read_from")  # of a hardware section
# docker and compose: go-units' RAMInBytes, in steps of 1024; Slurm: a number alone is MiB.
STEPS = "bkmgtp"
DOCKER = re.compile(r"([\d.]+) ?([bkmgtp]?)i?b?", re.IGNORECASE)
SLURM = re.compile(r"(\d+)([KMGT]?)B?", re.IGNORECASE)
# Kubernetes: apimachinery's resource.Quantity.
QUANTITY = re.compile(r"([\d.]+)(?:[eE](\d{1,2})|([kMGTPE]?)(i?))")
QUANTITY_STEPS = " kMGTPE"
SKY = re.compile(r"([\d.]+)(?:gi?b)?(\+?)", re.IGNORECASE)


class NamedMemory(Struct, frozen=True):
    """What a file says of a node's memory, in bytes; `said`: where it stands, with its value."""

    num_bytes: int
    said: str

    @property
    def hardware(self) -> dict[str, Any]:
        """The keys of a `hardware` section for it."""
        return dict(zip(NODE_KEYS, (self.num_bytes / GIB, self.said), strict=True))


def least(*found: NamedMemory | None) -> NamedMemory | None:
    """The one that binds, where several hold; None where nothing is said."""
    known = [one for one in found if one is not None]
    return min(known, key=lambda one: one.num_bytes, default=None)


def least_section(*sections: Mapping[str, Any]) -> dict[str, Any]:
    """Of hardware sections the keys of the one whose node has least."""
    known = [one for one in sections if one.get(NODE_KEYS[0]) is not None]
    found = min(known, key=lambda one: float(one[NODE_KEYS[0]]), default={})
    return {key: found[key] for key in NODE_KEYS if key in found}


def docker_memory(value: Any, said: str) -> NamedMemory | None:
    """`64g` of docker and compose; None where it is no size, or no limit."""
    match = DOCKER.fullmatch(str(value).strip())
    if match is None:
        return None
    step = STEPS.index(match[2].lower() or "b")
    return _named(match[1], 1024**step, f"{said}={value}")


def kubernetes_memory(value: Any, said: str) -> NamedMemory | None:
    """`64Gi`, `64G`, `68719476736` or `64e9` of a container."""
    match = QUANTITY.fullmatch(str(value).strip())
    if match is None:
        return None
    step = QUANTITY_STEPS.index(match[3] or " ")
    unit = 10 ** int(match[2]) if match[2] else (1024 if match[4] else 1000) ** step
    return _named(match[1], unit, f"{said}={value}")


def skypilot_memory(value: Any) -> NamedMemory | None:
    """`64` or `64+` GB of an instance; `4x` is a multiple of its CPUs, which is not known here."""
    match = SKY.fullmatch(str(value).strip())
    if match is None:
        return None
    least_of = ", the least that is asked for" if match[2] else ""
    return _named(match[1], GIB, f"resources.memory={value}{least_of}")


def slurm_memory(
    given: Mapping[str, str], gpus: int | None, tasks: int | None
) -> NamedMemory | None:
    """A node's memory by a job's options, each by its long name.

    gpus, tasks: of a node. `--mem=0` is all that a node has, and which that is nobody says.
    """
    if "--mem" in given:
        return _slurm("--mem", given["--mem"], 1, "")
    if "--mem-per-gpu" in given and gpus:
        return _slurm("--mem-per-gpu", given["--mem-per-gpu"], gpus, f" x {gpus} GPUs")
    cpus = _cpus(given, gpus, tasks)
    if "--mem-per-cpu" in given and cpus:
        return _slurm("--mem-per-cpu", given["--mem-per-cpu"], cpus, f" x {cpus} CPUs")
    return None


def _cpus(given: Mapping[str, str], gpus: int | None, tasks: int | None) -> int | None:
    """CPUs of a node."""
    each, of = given.get("--cpus-per-task"), tasks or 1
    if each is None:
        each, of = given.get("--cpus-per-gpu"), gpus or 0
    return int(each) * of or None if each and each.isdecimal() and len(each) < 6 else None


def _slurm(name: str, value: str, times: int, of: str) -> NamedMemory | None:
    match = SLURM.fullmatch(value.strip())
    if match is None or not int(match[1]):
        return None
    unit = 1024 ** STEPS.index(match[2].lower() or "m")
    return _named(match[1], unit * times, f"{name}={value}{of}")


def _named(number: str, unit: int, said: str) -> NamedMemory | None:
    try:
        size = int(float(number) * unit)
    except ValueError:
        return None
    return NamedMemory(size, said) if size > 0 else None
