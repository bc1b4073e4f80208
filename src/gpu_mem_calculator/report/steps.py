"""The memory of a step as text: one stacked bar for each instant, peak and limit marked."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ..estimates.calculator import Estimate
from ..estimates.result import StageResult
from ..ledger.ledger import ACT, CACHE, COMM, GRAD, OPTIM, PARAM, RUNTIME, TEMP
from .lines import BOLD, DIM, LIMIT, Line, gib, line, stack_widths

LATER, MIDDLE, STEP = ", later micro-batch", ", middle micro-batch", "optimizer step"
ROWS = 14  # of more instants the lowest are left out
STAGES = 8  # of a longer pipeline some stages are left out
TITLE, FIGURE, BAR = 36, 11, 29
InstantRow = tuple[dict[str, Any], int]  # title, phase and bytes by kind; total bytes
OTHERS = ", second micro-batch of the first step|, first micro-batch of all|, first step"
LATER_TITLE = re.compile(f"{LATER}|{MIDDLE}|{OTHERS}")
ACTION = re.compile(r", (?:gather|gather the layer below|flatten|reduce|scatter)$")
GATHER = re.compile(r"^gather (?:the )?(first layer|last layer|layer \d+)(?:, flat)?")
SHORTER = (  # one after the other, until a label fits
    (" of the first step", ""),
    (" micro-batch", ""),
    (" layer", ""),
    (" layers:", ":"),
)
# Kinds in the order they are stacked, with a shade for each group and a colour for terminals.
SHADES = (
    ("█", "parameters", "blue", (PARAM,)),
    ("▓", "gradients, optimizer", "magenta", (GRAD, OPTIM)),
    ("▒", "activations", "green", (ACT, CACHE)),
    ("░", "temporaries, rest", "yellow", (TEMP, COMM, RUNTIME)),
)


def step_picture(estimate: Estimate) -> Iterator[Line]:
    """The picture of an estimate: allocated memory at each instant of start-up and a step."""
    rows = _distinct_instants(estimate.result.timeline)
    limit = estimate.result.gpu_memory_bytes - estimate.result.outside_torch_bytes
    highest = (estimate.result.peak_instant, estimate.result.allocated_bytes)
    peak = next((row for row, total in rows if (row["title"], total) == highest), None)
    what = "inference" if estimate.serves else "one step"
    yield from picture(f"start-up and {what}", rows, peak, limit)


def picture(
    head: str, rows: list[InstantRow], peak: dict[str, Any] | None, limit: int
) -> Iterator[Line]:
    """A stacked bar for each row, the peak marked; the limit, where the bars come near to it.

    rows: (title and bytes by kind, total bytes); limit: bytes that torch may take on the card.
    """
    top, shown = max(total for _, total in rows), _highest(rows)
    limited = top > 0.4 * limit > 0
    full = max(top, limit) if limited else top
    yield [(head.ljust(2 + TITLE + FIGURE - 3), BOLD), ("GiB", DIM)]
    for row, total in shown:
        yield _row(row, total, full, limit if limited else None, row is peak)
    omitted = len(rows) - len(shown)
    if omitted:
        yield line(f"  ({omitted} lower instant{'s' * (omitted > 1)} left out)", DIM)
    yield _legend(limited, [row for row, _ in rows])


def _highest(rows: list[InstantRow]) -> list[InstantRow]:
    """At most ROWS rows in their order: the highest of each phase and the optimizer step, then the
    highest of all.
    """
    if len(rows) <= ROWS:
        return rows
    highest = sorted(range(len(rows)), key=lambda i: -rows[i][1])
    kept = {rows[i][0].get("phase"): i for i in reversed(highest)}
    steps = [i for i in highest if rows[i][0]["title"] == STEP]
    first = [*dict.fromkeys([*kept.values(), *steps[:1]])]
    chosen = sorted([*first, *(i for i in highest if i not in first)][:ROWS])
    return [rows[i] for i in chosen]


def _distinct_instants(timeline: list[dict[str, Any]]) -> list[InstantRow]:
    """Instants with their totals in bytes. Of those with the same label only the highest is kept,
    and of later micro-batches and the first step only instants that are higher than usual.
    """
    instants: dict[str, tuple[int, InstantRow]] = {}
    first: dict[str, int] = {}
    for place, row in enumerate(timeline):
        total, title = sum(row["bytes"].values()), row["title"]
        base_title = LATER_TITLE.sub("", title)
        if not total or (base_title != title and total <= first.get(base_title, 0)):
            continue
        first[base_title] = max(total, first.get(base_title, 0))
        label = _short(title)
        if label not in instants or total > instants[label][1][1]:
            instants[label] = (place, (row, total))
    return [pair for _, pair in sorted(instants.values(), key=lambda one: one[0])]


def _row(row: dict[str, Any], total: int, full: int, limit: int | None, peak: bool) -> Line:
    groups = [sum(row["bytes"].get(k, 0) for k in kinds) for _, _, _, kinds in SHADES]
    widths = stack_widths(groups, full, BAR)
    spans: Line = [
        (("► " if peak else "  ") + _short(row["title"]).ljust(TITLE), BOLD * peak),
        (gib(total, 2).rjust(FIGURE) + " ", BOLD * peak),
    ]
    mark = None if limit is None else min(BAR, round(BAR * limit / full))
    used = 0
    for (shade, _, style, _), width in zip(SHADES, widths, strict=True):
        text = shade * width
        if mark is not None and used <= mark < used + width:
            text = text[: mark - used] + LIMIT + text[mark - used + 1 :]
        spans.append((text, style))
        used += width
    if mark is not None and mark >= used:
        spans.append((" " * (mark - used) + LIMIT, DIM))
    return spans


def _short(title: str) -> str:
    """A title shortened to the width of its column; what FSDP does in a block is part of it."""
    text = GATHER.sub(r"forward, \1", ACTION.sub("", title)).replace(LATER, ", later")
    text = text.replace(MIDDLE, ", middle")
    text = text.replace("scatter the root's", "reduce the root's")
    for long, short in SHORTER:
        text = text if len(text) <= TITLE else _replace_end(text, long, short)
    return text if len(text) <= TITLE else text[: TITLE - 1] + "…"


def _replace_end(text: str, long: str, short: str) -> str:
    """The text with the last `long` in it shortened; "dense layers" is not a layer."""
    head, found, tail = text.rpartition(long)
    return head + short + tail if found and not tail.startswith("s") else text


def _legend(limited: bool, rows: list[dict[str, Any]]) -> Line:
    """The legend of the shades that occur."""
    spans: Line = [("  ", "")]
    for shade, title, style, kinds in SHADES:
        if any(row["bytes"].get(kind) for row in rows for kind in kinds):
            spans += [(shade, style), (f" {title} ", DIM)]
    if limited:
        spans += [(LIMIT, DIM), (" limit", DIM)]
    return spans


def stage_table(estimate: Estimate) -> Iterator[Line]:
    """The table of pipeline stages, the busiest marked; of a long pipeline only the ends and the
    neighbours of the busiest.
    """
    stages, busiest = estimate.result.stages, estimate.result.busiest_stage
    if len(stages) < 2:
        return
    yield [("pipeline stages".ljust(21), BOLD), ("layers  allocated GiB  highest at", DIM)]
    last = len(stages) - 1
    near = {0, 1, last - 1, last, busiest - 1, busiest, busiest + 1}
    gap: list[StageResult] = []
    for stage in stages:
        if len(stages) > STAGES and stage.stage not in near:
            gap.append(stage)
            continue
        if gap:
            yield _gap(gap)
            gap = []
        mark = "►" if stage.stage == busiest else " "
        name, peak = f"stage {stage.stage}", _short(stage.peak_phase)[:36]
        size = gib(stage.allocated_bytes, 2)
        text = f"{mark} {name:<17}{stage.num_layers:>8}{size:>15}  {peak}"
        yield line(text, BOLD if stage.stage == busiest else "")
    yield line()


def _gap(stages: list[StageResult]) -> Line:
    """One line for stages that are left out: their smallest and largest figures."""
    sizes = [stage.allocated_bytes for stage in stages]
    name = f"{stages[0].stage} to {stages[-1].stage}"
    return line(f"  {name:<17}{'':>8}{gib(min(sizes), 2):>15}  up to {gib(max(sizes), 2)}", DIM)
