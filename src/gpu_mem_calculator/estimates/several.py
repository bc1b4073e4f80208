"""What several commands that run at the same time take of their GPUs and of their node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from ..ledger.units import gib
from .bounds import bounded_verdict
from .calculator import full_estimate
from .checked import BAD_INPUT, CANNOT_TELL, DOES_NOT_FIT, USED, Checked
from .fit_verdict import EXIT_CODES, FITS, SHORT, UNSURE, WORDS
from .node import node_verdict

# What begins the place of a limit that is a container's own.
PER_CONTAINER = ("resources.limits", "deploy.resources", "mem_limit", "--memory")


class Together(Struct, frozen=True, kw_only=True):
    """What several commands take of one memory at the same time, and whether it has enough."""

    parts: tuple[tuple[str, int], ...]
    has: int
    verdict: str

    @property
    def total(self) -> int:
        """Bytes of all together."""
        return sum(size for _, size in self.parts)

    @property
    def sums(self) -> str:
        """The figures that are added."""
        return " + ".join(f"{gib(size)} {name}" for name, size in self.parts)

    @property
    def part_rows(self) -> list[dict[str, Any]]:
        """What each command takes, as data."""
        return [{"name": name, "bytes": size} for name, size in self.parts]


class SharedGpu(Together, frozen=True, kw_only=True):
    """A GPU that several commands use at the same time; `problem`: why one of them does not start
    beside those before it.
    """

    devices: tuple[str, ...]
    problem: str = ""

    @property
    def text(self) -> str:
        """The figures in one line."""
        names = f"GPU{'s' * (len(self.devices) > 1)} {', '.join(self.devices)}"
        text = f"{names}: {gib(self.total)} of {gib(self.has)} GiB together ({self.sums})"
        return f"{text}. {self.problem}" if self.problem else text

    @property
    def data(self) -> dict[str, Any]:
        """The same as data."""
        has: dict[str, Any] = {"gpu_memory_bytes": self.has, "total_bytes": self.total}
        if self.problem:
            has["problem"] = self.problem
        return {
            "devices": list(self.devices),
            "verdict": self.verdict,
            **has,
            "parts": self.part_rows,
        }


class SharedNode(Together, frozen=True, kw_only=True):
    """A node whose host several commands use at the same time."""

    read_from: str

    @property
    def text(self) -> str:
        """The figures in one line."""
        said = f" ({self.read_from})" if self.read_from else ""
        return f"host RAM: {gib(self.total)} of {gib(self.has)} GiB{said} together ({self.sums})"

    @property
    def data(self) -> dict[str, Any]:
        """The same as data."""
        has = {"node_bytes": self.has, "total_bytes": self.total, "read_from": self.read_from}
        return {"devices": [], "verdict": self.verdict, **has, "parts": self.part_rows}


Shared = SharedGpu | SharedNode


def worst_code(checked: Sequence[Checked], shared: Sequence[Shared]) -> int:
    """The worst exit code, also of what commands take together."""
    return worst_of([*(one.code for one in checked), *(EXIT_CODES[gpu.verdict] for gpu in shared)])


def worst_of(codes: Iterable[int]) -> int:
    """The worst of exit codes: 1 before 2 before 3 before 0, so one that does not fit decides."""
    return max(codes, key=order_of, default=EXIT_CODES[FITS])


def order_of(code: int) -> int:
    """The place of an exit code from the best to the worst."""
    return (EXIT_CODES[FITS], CANNOT_TELL, BAD_INPUT, DOES_NOT_FIT).index(code)


def code_word(code: int) -> str:
    """The verdict of an exit code; of bad input it is open."""
    return next((word for word, number in EXIT_CODES.items() if number == code), UNSURE)


def taken_together(checked: Sequence[Checked]) -> list[Shared]:
    """The GPUs that several commands use at the same time, and the node."""
    return [*shared_gpus(checked), *_shared_nodes(checked)]


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
    parts = tuple((_name(one), one.takes) for one in found)
    has = min(result.gpu_memory_bytes for result in results)
    room = has - sum(size for _, size in parts)
    limits = [limit for result in results for limit in result.limits]
    word = bounded_verdict(FITS if room >= 0 else SHORT, room, limits)
    after, problem = one_after_the_other(found)
    if word == SHORT and after:
        parts, word = after, FITS
    elif problem and room >= 0:
        word = SHORT
    return SharedGpu(devices=devices, parts=parts, has=has, verdict=word, problem=problem)


def one_after_the_other(found: Sequence[Checked]) -> tuple[tuple[tuple[str, int], ...], str]:
    """What commands take that are started in their order, where all of them fit; else why a server
    does not start. Its pool is what is left of its share, or of what is free, at its release: some
    count in the share what others hold.
    """
    parts: list[tuple[str, int]] = []
    for one in found:
        run, taken = one.data["run"], sum(size for _, size in parts)
        if not taken:
            parts.append((_name(one), one.takes))
            continue
        if one.result is None or one.result.serving is None:
            return (), ""  # a training run takes the same beside others
        hardware = run.get("hardware") or {}
        held = taken + (hardware.get(USED) or 0)
        beside = full_estimate({**run, "hardware": {**hardware, USED: held}}).result
        if beside.verdict != FITS:
            why = beside.serving.problem if beside.serving is not None else ""
            known = why and beside.verdict == SHORT and one.result.verdict == FITS
            return (), f"Started after them, {_name(one)} fails: {why}" if known else ""
        parts.append((_name(one), int(beside.device_bytes or 0)))
    return tuple(parts), ""


def _name(one: Checked) -> str:
    return one.reading.name or one.reading.tool


def _shared_nodes(checked: Sequence[Checked]) -> list[SharedNode]:
    """A node for each set of commands that run together; a container has its own limit."""
    users: dict[str, list[Checked]] = {}
    for one in checked:
        host = one.result.host if one.result is not None else None
        if host is not None and host.node_bytes and not host.read_from.startswith(PER_CONTAINER):
            for slot in one.reading.slots:
                users.setdefault(slot, []).append(one)
    groups = {tuple(map(id, found)): found for found in users.values() if len(found) > 1}
    return [_shared_node(found) for found in groups.values()]


def _shared_node(found: Sequence[Checked]) -> SharedNode:
    hosts = [one.result.host for one in found if one.result and one.result.host]
    least = min(hosts, key=lambda host: host.node_bytes or 0)
    has = least.node_bytes or 0
    parts = tuple((_name(one), host.bytes_per_node) for one, host in zip(found, hosts, strict=True))
    word = node_verdict(sum(size for _, size in parts), has)
    return SharedNode(parts=parts, has=has, read_from=least.read_from, verdict=word)


def several_words(checked: Sequence[Checked], shared: Sequence[Shared], verdict: str) -> str:
    """The worst verdict on several commands in one line, with what decides it."""
    reasons = [gpu.text for gpu in shared if gpu.verdict == verdict]
    for one in () if reasons else checked:
        word = one.result.verdict if one.result is not None else UNSURE
        if verdict in (word, FITS):
            reasons.append(f"{_name(one)}: {one.data['summary']}" if one.result else _name(one))
    return f"{WORDS[verdict]}: {'; '.join(dict.fromkeys(reasons))}"


def answer_data(checked: Sequence[Checked], shared: Sequence[Shared]) -> Mapping[str, Any]:
    """The answer as data; of several with their names, and the worst verdict."""
    if len(checked) == 1:
        return checked[0].data
    code = worst_code(checked, shared)
    words = several_words(checked, shared, code_word(code))
    answers = [{"name": one.reading.name, **one.data} for one in checked]
    together = [gpu.data for gpu in shared]
    return {
        "verdict": code_word(code),
        "exit_code": code,
        "summary": words,
        "answers": answers,
        "together": together,
    }
