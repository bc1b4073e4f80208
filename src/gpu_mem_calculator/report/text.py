"""The report people see: verdict, picture, parts, what to do, where it comes from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..core.calculator import Estimate
from .advice import advice_lines, remedies
from .headline import basis, headline, verdict
from .lines import WARN, Line, command, gib, line, wrapped
from .parts import parts_table
from .room import room_lines
from .steps import stage_table, step_picture


def text_report(
    estimate: Estimate, words: Sequence[str], notes: Sequence[str] = ()
) -> Iterator[Line]:
    """The whole report. `words` are the command that explains it; `notes` say what was chosen."""
    yield from headline(estimate)
    for note in notes:
        yield from wrapped("", note, "dim")
    yield line()
    yield from verdict(estimate)
    yield line()
    yield from step_picture(estimate)
    yield line()
    yield from parts_table(estimate)
    yield line()
    yield from stage_table(estimate)
    yield from _numbers(estimate)
    yield from basis(estimate)
    yield from _remarks(estimate)
    yield from room_lines(estimate)
    yield from advice_lines(estimate, remedies(estimate))
    yield from command("why:  ", ["gpu-mem-calc", *words])


def _numbers(estimate: Estimate) -> Iterator[Line]:
    """The figures that other tools show, side by side."""
    result = estimate.result
    figures = [f"allocated {gib(result.allocated_bytes)}"]
    if result.startup_bytes:
        figures.append(f"start-up {gib(result.startup_bytes)}")
    for name, value in (("reserved", result.reserved_bytes), ("nvidia-smi", result.device_bytes)):
        if value is not None:
            figures.append(f"{name} {gib(value)}")
    yield from wrapped("", "   ".join(figures) + " GiB per GPU")
    away = [(name, value) for name, value in (
        ("host RAM", result.host_bytes_per_node), ("disk", result.disk_bytes_per_node),
    ) if value]  # fmt: skip
    if away:
        yield from wrapped("", "   ".join(f"{n} {gib(v)}" for n, v in away) + " GiB per node")


def _remarks(estimate: Estimate) -> Iterator[Line]:
    """Warnings, then what was assumed."""
    for warning in estimate.result.warnings:
        yield from wrapped("note: ", warning, WARN)
    if estimate.result.assumed:
        yield from wrapped("assumed: ", "; ".join(estimate.result.assumed))
    if estimate.result.warnings or estimate.result.assumed:
        yield line()
