"""Measured against predicted, part by part: what was printed beside what the estimate says.

Which printed figure is which part is a row of parts.toml. A part that differs by more than the
error of the estimate is evidence.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from ...estimates.calculator import Estimate
from ...ledger.ledger import GPU
from ...run.served import ACTIVATION, GRAPHS, NON_TORCH, POOL, WEIGHTS
from ...tools.logs.figure import Figure
from ...tools.logs.read import LogLine
from .crash import OTHERS, Crash, told
from .diagnosis import BYTES, LAYERS, PrintedPart
from .part_rows import LEAST_BYTES, differs, part_rows
from .training_parts import of_death, of_phases

DEVICE = re.compile(r"^(?:CUDA|ROCm|HIP|Vulkan|SYCL|MUSA)(\d+)$")
RANK = re.compile(r"(?:\bTP|rank=|Rank |\brank ?)(\d+)")
CARD_KEYS = {"gpu", "gpu_memory_gb", "gpu_memory_bytes", "available_memory_bytes"}


def parts(crash: Crash) -> tuple[PrintedPart, ...]:
    """The figures of a text that are parts of an estimate."""
    estimate = crash.estimate
    if estimate is not None and estimate.served:
        return (*_of_server(crash, estimate), *of_death(crash))
    return (*of_death(crash), *of_phases(crash))


def part_evidence(found: Iterable[PrintedPart]) -> Iterator[str]:
    """A sentence for each part that differs by more than the error."""
    for one in found:
        if one.beyond and one.estimated is not None:
            where = f" ({one.where})" if one.where else ""
            than = "more" if one.printed > one.estimated else "less"
            words = f"; {one.means}" if one.means else ""
            yield (
                f"{one.name}{where}: {amount(one.printed, one.unit)} {one_of(one)}, {than} than the"
                f" {amount(one.estimated, one.unit)} of the estimate{words}"
            )


def one_of(part: PrintedPart) -> str:
    """How a figure is told."""
    return "is printed" if part.unit == BYTES else "are printed"


def amount(value: int, unit: str) -> str:
    """A figure with its unit."""
    return told(value) if unit == BYTES else f"{value:,} {unit}"


def _of_server(crash: Crash, estimate: Estimate) -> Iterator[PrintedPart]:
    """What a server printed when it started."""
    engine = estimate.resolved.engine.name
    section = estimate.result.run.get("hardware") or {}
    known = bool(section.keys() & CARD_KEYS)
    rows = part_rows("server")
    found = [
        one if known or engine in row["any_card"] else _of_assumed_card(one, row, engine)
        for row in rows
        for one in _row_parts(crash, estimate, row, engine)
    ]
    yield from _with_reasons(found)
    yield from _layers(crash, estimate)
    yield from _held(crash, estimate, known=known)


def _of_assumed_card(one: PrintedPart, row: Mapping[str, Any], engine: str) -> PrintedPart:
    """A part that is not judged; beside it stands the figure that nearly every card has."""
    near = engine in row.get("nearly", ())
    return replace(one, estimated=one.estimated if near else None, beyond=False, means="")


def _row_parts(
    crash: Crash, estimate: Estimate, row: Mapping[str, Any], engine: str
) -> Iterator[PrintedPart]:
    for what, *names in row["lines"]:
        lines = of_one_rank([one for one in crash.log.of(what) if _sum(one, names) is not None])
        devices = list(dict.fromkeys(str(one.figures.get("device", "")) for one in lines))
        for device in devices:
            own = [one for one in lines if str(one.figures.get("device", "")) == device]
            line = own[-1] if engine in row.get("last", ()) else own[0]
            counted = own if engine in row.get("added", ()) else [line]
            printed = sum(_sum(one, names) or 0 for one in counted)
            value = _estimated(estimate, row, device)
            yield _part(row, engine, line, printed, value, device)
        if devices:
            return
    for what, *names in row.get("whole", ()):
        for line in crash.log.of(what)[:1]:
            total = _sum(line, names)
            if total is not None:
                yield _part(row, engine, line, total, _whole(estimate, row["of"]), "all devices")
                return


def of_one_rank(lines: list[LogLine]) -> list[LogLine]:
    """Of lines that every rank prints, those of the rank that prints first."""
    if not lines:
        return []
    ranks = [found[1] if (found := RANK.search(one.text)) else "" for one in lines]
    return [one for one, rank in zip(lines, ranks, strict=True) if rank == ranks[0]]


def _sum(line: LogLine, names: list[str]) -> int | None:
    """The sum of figures; None where one is missing."""
    figures = [line.figures.get(f"{one}_bytes", line.figures.get(one)) for one in names]
    values = [int(one.value) for one in figures if isinstance(one, Figure)]
    return sum(values) if len(values) == len(names) else None


def _estimated(estimate: Estimate, row: Mapping[str, Any], device: str) -> int | None:
    """What the estimate says of a figure: on a card, or in host RAM."""
    served = estimate.served
    if row["of"] == "kv_tokens":
        serving = estimate.result.serving
        return serving.kv_tokens if serving is not None else None
    card = DEVICE.match(device)
    if device and card is None:
        items = served[0].items
        return sum(one.bytes for one in items if one.figure == row["of"] and one.place != GPU)
    number = int(card[1]) if card is not None else 0
    return served[number].figure(row["of"]) if number < len(served) else None


def _whole(estimate: Estimate, figure: str) -> int:
    """A figure of all cards and of the host, which each card's memory has."""
    host = sum(
        one.bytes for one in estimate.served[0].items if one.figure == figure and one.place != GPU
    )
    return host + sum(one.figure(figure) for one in estimate.served)


def _part(
    row: Mapping[str, Any],
    engine: str,
    line: LogLine,
    printed: int,
    estimated: int | None,
    device: str,
) -> PrintedPart:
    """A part of a server; what lies in host RAM, or is of all devices, is never judged: files are
    mapped, and plans are not what is allocated.
    """
    within = row.get("within", {}).get(engine)
    judged = within is not None and (not device or DEVICE.match(device) is not None)
    found = PrintedPart(
        name=row["name"],
        where=device,
        line=line.line,
        unit=row.get("unit", BYTES),
        printed=printed,
        estimated=estimated,
    )
    if not judged or estimated is None or not differs(printed, estimated, within):
        return found
    side = "more" if printed > estimated else "less"
    means = row.get(side, {})
    return replace(found, beyond=True, means=means.get(engine, means.get("others", "")))


def _with_reasons(found: list[PrintedPart]) -> Iterator[PrintedPart]:
    """The parts; a pool that is smaller because others are larger is told so."""
    others = [one for one in found if one.name in OTHERS_OF_POOL and one.estimated is not None]
    more = sum(one.printed - (one.estimated or 0) for one in others)
    for one in found:
        if one.name == POOL_NAME and one.beyond and one.estimated is not None and not one.where:
            short = one.estimated - one.printed
            if short > 0 and abs(short - more) <= max(short / 10, LEAST_BYTES):
                yield replace(one, means="the other parts are larger by as much")
                continue
        yield one


POOL_NAME = next(row["name"] for row in part_rows("server") if row["of"] == POOL)
OTHERS_OF_POOL = tuple(
    row["name"]
    for row in part_rows("server")
    if row["of"] in (WEIGHTS, ACTIVATION, NON_TORCH, GRAPHS)
)


def _layers(crash: Crash, estimate: Estimate) -> Iterator[PrintedPart]:
    """Layers on the card, the output layer as one."""
    asked = (estimate.result.run.get("inference") or {}).get("n_gpu_layers")
    has = len(estimate.resolved.run.arch.layers) + 1
    for line in crash.log.of("layers_on_card", "memory_plan"):
        on, of = _sum(line, [LAYERS]), _sum(line, ["all_layers"])
        if on is None or on < 0:
            continue
        other = of is not None and of != has
        yield PrintedPart(
            name="layers on the card",
            line=line.line,
            unit=LAYERS,
            printed=on,
            estimated=has if asked is None else min(int(asked), has),
            beyond=other,
            means=f"the model has {of:,}, and the run's has {has:,}: it is another"
            if other
            else "",
        )
        return


def _held(crash: Crash, estimate: Estimate, *, known: bool) -> Iterator[PrintedPart]:
    """What was free before the server started, on a card whose memory is known."""
    context = estimate.outside_torch[0][1] if estimate.outside_torch else 0
    for line in crash.log.of("load_begin", "profiled", "too_little_free"):
        free, total = line.bytes_of("free"), line.bytes_of("total")
        total = total or (estimate.resolved.hardware.card_bytes if known else None)
        if free is None or total is None:
            continue
        beyond = total - context - free > OTHERS
        yield PrintedPart(
            name="free at the start",
            line=line.line,
            printed=free,
            estimated=total - context,
            beyond=beyond,
            means="another process held the rest" if beyond else "",
        )
        return
