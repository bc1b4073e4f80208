"""Measured against predicted, part by part: what was printed beside what the estimate says.

Which printed figure is which part is a row of parts.toml. A part that differs by more than the
error of the estimate is evidence.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any

from msgspec.structs import replace

from ...catalog.kept import read_table
from ...estimates.calculator import Estimate
from ...ledger.ledger import GPU
from ...ledger.units import MIB
from ...pytorch.replay.footprint import ReplayPhase
from ...run.served import ACTIVATION, GRAPHS, NON_TORCH, POOL, WEIGHTS
from ...tools.logs.figure import Figure
from ...tools.logs.read import LogLine
from .crash import OTHERS, Crash, told
from .diagnosis import BYTES, LAYERS, PrintedPart
from .places import BACKWARD, FORWARD, LOADING, OPTIMIZER_STEP, STARTING

WITHIN_TRAINING = 1.0
"""Percent: 19 of 20 measured runs have less than this between what torch allocated and the estimate
(docs/scored.json, which tests/advice/diagnosis/test_parts.py reads)."""
LEAST_BYTES = 64 * MIB  # no difference below it is evidence: logs print two digits of a GiB
DEVICE = re.compile(r"^(?:CUDA|ROCm|HIP|Vulkan|SYCL|MUSA)(\d+)$")
RANK = re.compile(r"(?:\bTP|rank=|Rank |\brank ?)(\d+)")
KEPT = 2  # lines of a phase that are kept, of the first and of the last
START, STEP = "start", "step"
CARD_KEYS = {"gpu", "gpu_memory_gb", "gpu_memory_bytes", "available_memory_bytes"}
PHASES = {FORWARD: "fwd", BACKWARD: "bwd", OPTIMIZER_STEP: "opt"}
SUFFIXES = {"forward": "fwd", "backward": "bwd", "optimizer": "opt"}
STEPS = 3  # that are replayed; later ones are as the last


def parts(crash: Crash) -> tuple[PrintedPart, ...]:
    """The figures of a text that are parts of an estimate."""
    estimate = crash.estimate
    if estimate is not None and estimate.served:
        return (*_of_server(crash, estimate), *_of_death(crash))
    return (*_of_death(crash), *_of_phases(crash))


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


@cache
def part_rows(kind: str) -> tuple[Mapping[str, Any], ...]:
    """The rows of parts.toml."""
    table = read_table(os.path.join(os.path.dirname(__file__), "parts.toml"))
    return tuple(table[kind])


# Servers


def _of_server(crash: Crash, estimate: Estimate) -> Iterator[PrintedPart]:
    """What a server printed when it started."""
    engine = estimate.resolved.engine.name
    section = estimate.result.run.get("hardware") or {}
    known = bool(section.keys() & CARD_KEYS)
    rows = part_rows("server")
    found = [
        one if known or engine in row["any_card"] else replace(one, estimated=None, beyond=False)
        for row in rows
        for one in _row_parts(crash, estimate, row, engine)
    ]
    yield from _with_reasons(found)
    yield from _layers(crash, estimate)
    yield from _held(crash, estimate, known=known)


def _row_parts(
    crash: Crash, estimate: Estimate, row: Mapping[str, Any], engine: str
) -> Iterator[PrintedPart]:
    for what, *names in row["lines"]:
        lines = _of_one_rank([one for one in crash.log.of(what) if _sum(one, names) is not None])
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


def _of_one_rank(lines: list[LogLine]) -> list[LogLine]:
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
    if not judged or estimated is None or not _differs(printed, estimated, within):
        return found
    side = "more" if printed > estimated else "less"
    means = row.get(side, {})
    return replace(found, beyond=True, means=means.get(engine, means.get("others", "")))


def _differs(printed: int, estimated: int, percent: float) -> bool:
    least = max(abs(printed) * percent / 100, LEAST_BYTES)
    return abs(printed - estimated) > least


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


# Training


def _of_death(crash: Crash) -> Iterator[PrintedPart]:
    """The card's memory, as the message says it."""
    death, estimate = crash.death, crash.estimate
    if death is None or death.what not in ("torch_oom", "snapshot_oom"):
        return
    allocated, unallocated = crash.size("allocated"), crash.size("unallocated")
    reserved, process = crash.size("reserved"), crash.size("process")
    if unallocated is None and None not in (reserved, allocated):
        unallocated = (reserved or 0) - (allocated or 0)
    training = estimate if estimate is not None and not estimate.serves else None
    if allocated is not None:
        yield _allocated(crash, training, allocated, death.line)
    if unallocated is not None:
        result = None if training is None else training.result
        lost = (
            None
            if result is None or result.needs_bytes is None
            else max(result.needs_bytes - result.allocated_bytes, 0)
        )
        yield PrintedPart(
            name="reserved but unallocated", line=death.line, printed=unallocated, estimated=lost
        )
    if None not in (process, allocated, unallocated):
        yield _outside(crash, training, death.line)
    if crash.others is not None:
        yield PrintedPart(name="other processes", line=death.line, printed=crash.others)
    free = crash.size("free")
    if free is not None:
        yield PrintedPart(name="free", line=death.line, printed=free)


def _allocated(crash: Crash, training: Estimate | None, allocated: int, line: int) -> PrintedPart:
    """What torch had allocated, and the most that it should have had in that phase."""
    where, most = _at_death(crash, training)
    found = PrintedPart(name="allocated", where=where, line=line, printed=allocated, estimated=most)
    if most is None or allocated <= most or not _differs(allocated, most, WITHIN_TRAINING):
        return found
    means = (
        "something else is alive in the program (a second model, outputs that are kept), or it was"
        " not run as given"
    )
    return replace(found, beyond=True, means=means)


def _at_death(crash: Crash, training: Estimate | None) -> tuple[str, int | None]:
    """The phase in which it died, and the most that the estimate has allocated in it."""
    if training is None:
        return "", None
    phase, replayed = crash.place.phase, training.replayed
    if replayed is None or phase not in {*PHASES, LOADING, STARTING, ""}:
        return "", None
    if phase in (LOADING, STARTING):
        return f"in {phase} at most", replayed.startup_bytes
    if phase == "":
        return "in the run at most", max(replayed.startup_bytes, replayed.allocated_bytes)
    step = None if crash.step is None else min(crash.step, STEPS) - 1
    most = [one.peak_bytes for name, one in _replayed(replayed.phases, step, PHASES[phase])]
    return f"in {phase} at most", max(most, default=None)


def _outside(crash: Crash, training: Estimate | None, line: int) -> PrintedPart:
    """What the process has outside torch's allocator."""
    sizes = (crash.size("process"), crash.size("allocated"), crash.size("unallocated"))
    process, allocated, unallocated = (one or 0 for one in sizes)
    printed = max(process - allocated - unallocated, 0)
    expected = None if training is None else training.result.outside_torch_bytes
    beyond = expected is not None and printed - expected > OTHERS
    return PrintedPart(
        name="outside torch",
        line=line,
        printed=printed,
        estimated=expected,
        beyond=beyond,
        means="a library allocates by itself (NCCL, another framework)" if beyond else "",
    )


def _replayed(
    phases: Mapping[str, ReplayPhase], step: int | None, suffix: str
) -> list[tuple[str, ReplayPhase]]:
    """The phases of a step, or of all, with a suffix."""
    begin = "s" if step is None else f"s{step}."
    return [
        (name, one)
        for name, one in phases.items()
        if name.startswith(begin) and name.endswith(f".{suffix}")
    ]


def _of_phases(crash: Crash) -> Iterator[PrintedPart]:
    """The lines that say the memory of a phase."""
    phases, estimate = None, crash.estimate
    if estimate is not None and estimate.replayed is not None and len(estimate.ledgers) == 1:
        phases = estimate.replayed.phases  # a log does not say of which pipeline stage it is
    for line, phase, count in _kept(_phase_lines(crash)):
        row = next(
            (
                (one, found)
                for one in part_rows("phase")
                if one["tool"] == line.tool and (found := re.search(one["words"], phase))
            ),
            None,
        )
        where = phase or "model on the card"
        most = _figures(phases, *row, count, crash) if row is not None and phases else {}
        for name in ("allocated", "highest", "reserved", "reserved_highest"):
            printed = line.bytes_of(name)
            if printed is not None:
                yield _phase_part(PRINTED[name], where, line, printed, most.get(name))


PRINTED = {
    "allocated": "allocated",
    "highest": "highest allocated",
    "reserved": "reserved",
    "reserved_highest": "highest reserved",
}


def _phase_part(
    name: str, where: str, line: LogLine, printed: int, value: int | None
) -> PrintedPart:
    """What is allocated is judged, the highest where it is higher, as other lines can be between;
    what is reserved depends on the card's memory.
    """
    judged = value is not None and "allocated" in name
    judged = judged and (name == "allocated" or printed > (value or 0))
    beyond = judged and _differs(printed, value or 0, WITHIN_TRAINING)
    means = "the program was not run as given, or has something else alive" if beyond else ""
    return PrintedPart(
        name=name,
        where=where,
        line=line.line,
        printed=printed,
        estimated=value,
        beyond=beyond,
        means=means,
    )


def _phase_lines(crash: Crash) -> Iterator[tuple[LogLine, str, int]]:
    """Lines of memory with their phase, and how often it came before."""
    seen: Counter[tuple[str, str]] = Counter()
    named = ""
    for line in crash.log.of("phase", "phase_memory", "step_memory"):
        if line.what == "phase":
            named = str(line.figures["phase"])
            continue
        step = line.figures.get("step")
        own = f"step {step.value:,}" if isinstance(step, Figure) else line.figures.get("phase")
        phase = named if own is None else str(own)
        named = ""
        yield line, phase, seen[line.tool, phase]
        seen[line.tool, phase] += 1


def _kept(lines: Iterable[tuple[LogLine, str, int]]) -> Iterator[tuple[LogLine, str, int]]:
    """Of the lines of one phase the first and the last; of steps that are numbered, too."""
    groups: dict[tuple[str, str], list[tuple[LogLine, str, int]]] = {}
    for one in lines:
        groups.setdefault((one[0].tool, re.sub(r"\d[\d,]*", "N", one[1])), []).append(one)
    kept = [
        one
        for group in groups.values()
        for one in (group if len(group) <= 2 * KEPT else [*group[:KEPT], *group[-KEPT:]])
    ]
    return iter(sorted(kept, key=lambda one: one[0].line))


def _figures(
    phases: Mapping[str, ReplayPhase],
    row: Mapping[str, Any],
    found: re.Match[str],
    count: int,
    crash: Crash,
) -> dict[str, int]:
    """What the estimate says at the end of a phase, and at its highest."""
    if row["when"] == START:
        own = [phases["startup"]]
    else:
        micro = 1
        if row.get("every") == "micro-batch" and crash.estimate is not None:
            micro = max(int(crash.estimate.resolved.run.micro_batches), 1)
        said = found.groupdict().get("step")
        step = int(said.replace(",", "")) - 1 if said else count // micro
        when = row["when"]
        if when == "optimizer" and count % micro < micro - 1:
            when = "backward"  # it steps after the last micro-batch
        own = _of_step(phases, when, min(step, STEPS - 1), count % micro)
    if not own:
        return {}
    end = {"allocated": own[-1].start_next_bytes, "reserved": own[-1].reserved_bytes}
    if not row.get("highest"):
        return end
    return end | {
        "highest": max(one.peak_bytes for one in own),
        "reserved_highest": max(one.reserved_bytes for one in own),
    }


def _of_step(
    phases: Mapping[str, ReplayPhase], when: str, step: int, micro: int
) -> list[ReplayPhase]:
    """The phases of a step, of a micro-batch of it, or up to its end."""
    if when == STEP:
        return [one for name, one in phases.items() if name < f"s{step + 1}" or name == "startup"]
    suffix = SUFFIXES[when]
    own = [one for _, one in _replayed(phases, step, suffix)]
    return own[min(micro, len(own) - 1) :][:1] if own else []
