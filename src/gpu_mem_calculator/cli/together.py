"""Several answers of `check`: each by its name, and what those on one GPU take together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from ..estimates.bounds import bounded_verdict
from ..estimates.fit_verdict import FITS, SHORT, UNSURE, WORDS
from ..estimates.result import MemoryResult
from ..estimates.verdict_words import total_bytes
from ..ledger.units import gib
from ..report.headline import STYLES
from ..report.lines import BOLD, Line, line, wrap_lines
from ..tools.reading.reading import Reading


class Checked(Struct, frozen=True, kw_only=True):
    """The answer for one command.

    - `code`: its exit code; `problems`: why it has no estimate
    - `result`: its estimate, and `gpus_per_node` of it
    - `lines` and `data`: its report
    """

    reading: Reading
    code: int
    data: Mapping[str, Any]
    lines: Sequence[Line] = ()
    problems: tuple[str, ...] = ()
    result: MemoryResult | None = None
    gpus_per_node: int = 1

    @property
    def devices(self) -> tuple[str, ...]:
        """The GPUs of its machine that it uses."""
        named = self.reading.devices[: self.gpus_per_node]
        return named or tuple(map(str, range(self.gpus_per_node)))

    @property
    def takes(self) -> int:
        """Bytes that it takes of each: a server its share, training what it must have."""
        assert self.result is not None
        served = self.result.serving is not None and self.result.device_bytes is not None
        return int(self.result.device_bytes or 0) if served else total_bytes(self.result)


class SharedGpu(Struct, frozen=True, kw_only=True):
    """A GPU that several commands use at the same time, and whether it has enough for all."""

    devices: tuple[str, ...]
    parts: tuple[tuple[str, int], ...]
    has: int
    verdict: str

    @property
    def total(self) -> int:
        """Bytes of all together."""
        return sum(size for _, size in self.parts)

    @property
    def text(self) -> str:
        """The figures in one line."""
        names = f"GPU{'s' * (len(self.devices) > 1)} {', '.join(self.devices)}"
        parts = " + ".join(f"{gib(size)} {name}" for name, size in self.parts)
        return f"{names}: {gib(self.total)} of {gib(self.has)} GiB together ({parts})"

    @property
    def data(self) -> dict[str, Any]:
        """The same as data."""
        parts = [{"name": name, "bytes": size} for name, size in self.parts]
        has = {"gpu_memory_bytes": self.has, "total_bytes": self.total}
        return {"devices": list(self.devices), "verdict": self.verdict, **has, "parts": parts}


def shared_gpus(checked: Sequence[Checked]) -> list[SharedGpu]:
    """The GPUs that several commands use at the same time; those with the same commands are one."""
    users: dict[tuple[str, str], list[int]] = {}
    for number, one in enumerate(checked):
        if one.result is not None:
            for slot in one.reading.slots:
                for device in one.devices:
                    users.setdefault((slot, device), []).append(number)
    groups: dict[tuple[int, ...], dict[str, None]] = {}
    for (_, device), numbers in users.items():
        if len(numbers) > 1:
            groups.setdefault(tuple(numbers), {})[device] = None
    whole = [set(numbers) for numbers in groups]
    return [
        _shared([checked[number] for number in numbers], tuple(devices))
        for numbers, devices in groups.items()
        if not any(set(numbers) < other and devices.keys() <= _of(groups, other) for other in whole)
    ]


def _of(groups: Mapping[tuple[int, ...], dict[str, None]], numbers: set[int]) -> set[str]:
    """The GPUs of a group."""
    return {device for one, devices in groups.items() if set(one) == numbers for device in devices}


def _shared(found: Sequence[Checked], devices: tuple[str, ...]) -> SharedGpu:
    results = [one.result for one in found if one.result is not None]
    parts = tuple((one.reading.name or one.reading.tool, one.takes) for one in found)
    has = min(result.gpu_memory_bytes for result in results)
    room = has - sum(size for _, size in parts)
    limits = [limit for result in results for limit in result.limits]
    word = bounded_verdict(FITS if room >= 0 else SHORT, room, limits)
    return SharedGpu(devices=devices, parts=parts, has=has, verdict=word)


def several_lines(
    checked: Sequence[Checked], shared: Sequence[SharedGpu], verdict: str
) -> Iterator[Line]:
    """The worst verdict with what decides it, then each answer under the names of its commands."""
    alone = [one for one in checked if verdict in (_word(one), FITS)]
    reasons = [gpu.text for gpu in shared if gpu.verdict == verdict]
    reasons += dict.fromkeys(one.reading.name or one.reading.tool for one in alone)
    yield from wrap_lines("", f"{WORDS[verdict]}: {'; '.join(reasons)}", STYLES[verdict])
    for gpu in shared:
        if gpu.verdict != verdict:
            yield from wrap_lines("", f"{WORDS[gpu.verdict]}: {gpu.text}", STYLES[gpu.verdict])
    yield line()
    done: list[Sequence[Line]] = []
    for one in checked:
        if one.lines in done or not one.lines:
            continue
        done.append(one.lines)
        for name in (other.reading.name for other in checked if other.lines == one.lines):
            yield line(name or one.reading.tool, BOLD)
        yield from one.lines
        yield line()


def _word(one: Checked) -> str:
    """The verdict of an answer; one that cannot be read is open."""
    return one.result.verdict if one.result is not None else UNSURE


def several_data(
    checked: Sequence[Checked], shared: Sequence[SharedGpu], code: int, verdict: str
) -> dict[str, Any]:
    """All answers as data; `verdict` is the worst."""
    answers = [{"name": one.reading.name, **one.data} for one in checked]
    together = [gpu.data for gpu in shared]
    return {"verdict": verdict, "exit_code": code, "answers": answers, "together": together}
