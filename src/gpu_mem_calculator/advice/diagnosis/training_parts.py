"""Parts of training: the card's memory as a message says it, and memory by phase and by step."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from ...estimates.calculator import Estimate
from ...estimates.verdict_words import limit_names
from ...pytorch.replay.footprint import ReplayPhase
from ...tools.logs.figure import Figure
from ...tools.logs.read import LogLine
from .crash import OTHERS, WITHIN_TRAINING, Crash
from .diagnosis import PrintedPart
from .part_rows import differs, part_rows
from .places import BACKWARD, FORWARD, LOADING, OPTIMIZER_STEP, STARTING

KEPT = 2  # lines of a phase that are kept, of the first and of the last
START, STEP = "start", "step"
PHASES = {FORWARD: "fwd", BACKWARD: "bwd", OPTIMIZER_STEP: "opt"}
SUFFIXES = {"forward": "fwd", "backward": "bwd", "optimizer": "opt"}
STEPS = 3  # that are replayed; later ones are as the last


def of_death(crash: Crash) -> Iterator[PrintedPart]:
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
    if most is None or allocated <= most or not differs(allocated, most, WITHIN_TRAINING):
        return found
    means = (
        "something else is alive in the program (a second model, outputs that are kept), or it was"
        " not run as given"
    )
    limits = [] if training is None else training.result.limits
    if unknown := [one for one in limits if one.adds_bytes != 0]:
        means = f"the run is not known whole ({limit_names(unknown)})"
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


def of_phases(crash: Crash) -> Iterator[PrintedPart]:
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
    beyond = judged and differs(printed, value or 0, WITHIN_TRAINING)
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
