"""Plans as text on one screen: the best one, why, the others, the front, and what to do next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ...ledger.units import GIB
from ...tools.translation.arguments import tables
from ..lines import (
    BAD,
    BOLD,
    DIM,
    GOOD,
    WARN,
    WIDTH,
    Line,
    command,
    gauge,
    gib,
    line,
    stack_widths,
    wrap_lines,
)
from ..progress_bar import shorten
from .amounts import (
    card,
    card_bytes,
    difference_text,
    rate_text,
    seconds_text,
    time_parts,
    training_words,
)
from .figures import MILLI, interval, plan_axes, plan_columns
from .words import change_words, question_words, setup_words, short_setups

if TYPE_CHECKING:
    from ...advice.planner.answers.plans import KnobEffect, Plan, Plans

MOST_KNOBS = 6
NAMED = 10  # ranks that are written; the others of the front are bullets
HEIGHT, LABEL = 7, 9  # rows of the picture, and columns left of it
HARD = "\u00a0"  # a space at which no line ends
MOST = 10**6  # the length of a bar of time, which is then rounded to characters
LEAST_SETUP = 20  # columns of a set-up in the table; the last figures give way on a narrow screen
# The parts of a step: a character and a colour for each, in turn.
FILLS = tables(__file__)["fills"]
SETUP, SERVED_SETUP = "set-up, batch×steps, recompute", "set-up"


def plan_lines(plans: Plans, next_words: Sequence[Sequence[str]], width: int = WIDTH) -> list[Line]:
    """The answer to a question; `next_words` are commands to continue with."""
    blocks = first_blocks(plans, width)
    if not any(one.fits_on_gpu for one in plans.plans):
        blocks.append(list(nothing_lines(plans, width)))
    if len(plans.plans) > 1:
        blocks.append(list(table_lines(plans, width)))
        blocks.append(list(front_block(plans, width)))
    if plans.plans:
        blocks.append(list(knob_lines(plans.plans[0], width)))
    blocks.append(
        [
            *wrap_lines("", space_words(plans), DIM, width),
            *(one for text in plans.limits for one in wrap_lines("limit: ", text, DIM, width)),
            *_next_lines(next_words, width),
        ]
    )
    return _joined(blocks)


def first_lines(plans: Plans, width: int = WIDTH) -> list[Line]:
    """What the answer to a question begins with: the question, and the best plan."""
    return _joined(first_blocks(plans, width))


def first_blocks(plans: Plans, width: int) -> list[list[Line]]:
    """The question, and the best plan where there is one."""
    best = [list(best_lines(one, width)) for one in plans.plans[:1]]
    return [wrap_lines("", question_words(plans), BOLD, width), *best]


def _joined(blocks: list[list[Line]]) -> list[Line]:
    """Blocks with an empty line between them."""
    shown = [block for block in blocks if block]
    return [one for block in shown for one in (*block, line())][:-1]


def best_lines(plan: Plan, width: int) -> Iterator[Line]:
    """The best plan: its set-up, memory, time and its parts, and why it is the best."""
    yield from wrap_lines(
        "", "  ".join(setup_words(plan)), GOOD if plan.fits_on_gpu else BAD, width
    )
    has = card(plan.run.get("hardware") or {}).memory_bytes
    needs = card_bytes(plan)
    left = f"needs {gib(needs)} of {gib(has)} GiB per GPU"
    spare = f"{gib(abs(plan.headroom_bytes))} GiB"
    fits = f"fits, {spare} to spare" if plan.fits_on_gpu else f"does not fit, {spare} short"
    style = GOOD if plan.fits_on_gpu else BAD
    if len(left) + len(fits) < width:
        yield [(left, BOLD), (fits.rjust(width - len(left)), style)]
    else:
        yield from (line(left, BOLD), line(fits, style))
    yield [
        (gauge(needs / has, width - 11), style.removeprefix("bold ")),
        (f" {100 * needs / has:,.0f} %", ""),
    ]
    yield from time_lines(plan, width)
    for number, sentence in enumerate(plan.why):
        yield from _wrapped("why: " if number == 0 else "     ", [sentence], "", width)


def time_lines(plan: Plan, width: int) -> Iterator[Line]:
    """The seconds of a step with their interval, speed and cost, and a bar of their parts."""
    yield from _wrapped("", [one.replace(" ", HARD) for one in speed_words(plan)], BOLD, width)
    parts = list(time_parts(plan))
    whole = sum(seconds for *_, seconds in parts) or 1.0
    widths = stack_widths([round(MOST * s / whole) for *_, s in parts], MOST, width)
    yield [
        (FILLS[i % len(FILLS)][0] * size, FILLS[i % len(FILLS)][1]) for i, size in enumerate(widths)
    ]
    scale = MILLI if plan.serving else 1.0
    legend = [
        f"{FILLS[i % len(FILLS)][0]} {title} {seconds_text(scale * seconds)}"
        for i, (_, title, seconds) in enumerate(parts)
    ]
    yield from _wrapped("", [one.replace(" ", HARD) for one in legend], DIM, width)


def _wrapped(label: str, texts: Sequence[str], style: str, width: int) -> Iterator[Line]:
    """Texts side by side, wrapped; a figure stays with its unit."""
    joined = "   ".join(texts).replace(" %", f"{HARD}%")
    for spans in wrap_lines(label, joined, style, width):
        yield [(text.replace(HARD, " "), one) for text, one in spans]


def speed_words(plan: Plan) -> Iterator[str]:
    """The speed of a plan, and what all tokens take and cost."""
    if plan.serving is None:
        yield f"step {interval(plan.step_seconds)} s"
    else:
        yield f"{interval(plan.step_seconds, MILLI)} ms per output token"
        yield f"first token {seconds_text(plan.serving.first_token_seconds.estimate)} s"
        yield f"{plan.serving.users:,} users"
    yield f"{rate_text(plan.tokens_per_second)} tokens/s"
    yield f"MFU {100 * plan.mfu:.1f} %"
    yield from training_words(plan)


def table_lines(plans: Plans, width: int) -> Iterator[Line]:
    """A row for each of the top plans: its set-up and its figures."""
    top = plans.plans[: int(plans.question.get("top") or 10)]
    columns = plan_columns(top)
    rows = [["#", SERVED_SETUP if top[0].serving else SETUP, *(one.head for one in columns)]]
    for one, words in zip(top, short_setups(top), strict=True):
        rows.append([str(one.rank), words, *(column.text(one) for column in columns)])
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    while len(widths) > 4 and _left(widths, width) < LEAST_SETUP:
        widths.pop()
    widths[1] = min(widths[1], max(LEAST_SETUP, _left(widths, width)))
    for number, row in enumerate(rows):
        cells = [cell.rjust(size) for cell, size in zip(row, widths, strict=False)]
        cells[1] = shorten(row[1], widths[1]).ljust(widths[1])
        yield line("  ".join(cells).rstrip(), DIM if number == 0 else "")


def _left(widths: Sequence[int], width: int) -> int:
    """The columns that the other cells of a row leave for the set-up."""
    return width - (sum(widths) - widths[1]) - 2 * (len(widths) - 1)


def front_block(plans: Plans, width: int) -> Iterator[Line]:
    """The picture of the front under its title."""
    picture = list(front_lines(plans, width))
    if picture:
        what = (
            "most tokens for the latency" if plans.plans[0].serving else "least memory for the time"
        )
        below = " (•: below the first ten)" if any(i >= NAMED for i in plans.front) else ""
        yield from wrap_lines("", f"Pareto front, {what}{below}", BOLD, width)
        yield from picture


def knob_lines(plan: Plan, width: int) -> Iterator[Line]:
    """What a change of each knob of the best plan costs or saves."""
    knobs = plan.knobs[:MOST_KNOBS]
    if not knobs:
        return
    yield line("from plan 1, one change", BOLD)
    name = min(width - 46, max(len(change_words(one.change)) for one in knobs))
    for one in knobs:
        yield _knob(one, plan, name)


def _knob(one: KnobEffect, plan: Plan, name: int) -> Line:
    words = shorten(change_words(one.change), name).ljust(name)
    memory = f"{one.needs_bytes / GIB:+,.1f}"
    scale, unit = (MILLI, "ms") if plan.serving else (1.0, "s")
    time = difference_text(scale * one.step_seconds, scale * plan.step_seconds.estimate)
    share = f"{100 * one.step_seconds / plan.step_seconds.estimate:+.0f} %"
    rate = one.tokens_per_second
    speed = f" {'-' if rate < 0 else '+'}{rate_text(abs(rate))} tok/s" if rate else ""
    fits = "" if one.fits_on_gpu else " does not fit"
    return [(f"  {words} {memory:>7} GiB {time:>7} {unit} ({share}){speed}", ""), (fits, WARN)]


def nothing_lines(plans: Plans, width: int) -> Iterator[Line]:
    """That no set-up fits, and the smallest changes that would let one fit."""
    yield line("no set-up fits", BAD)
    for one in plans.if_nothing_fits:
        text = change_words(one.change)
        if one.saves_bytes > 0:
            text += f" (saves {gib(one.saves_bytes)} GiB per GPU)"
        yield from wrap_lines("it would fit with ", text, width=width)


def space_words(plans: Plans) -> str:
    """How many set-ups were evaluated, and how many fit."""
    space = plans.space
    text = f"{space.set_ups:,} set-ups evaluated, {space.feasible:,} fit"
    served = "latency" in plans.question or any(one.serving for one in plans.plans)
    known = "published figures" if served else "measured steps"
    return f"{text}; the interval holds 80 % of the {known} it was drawn from, fewer of others"


def _next_lines(next_words: Sequence[Sequence[str]], width: int) -> Iterator[Line]:
    for number, words in enumerate(next_words):
        yield from command("next: " if number == 0 else "      ", ["gpu-mem-calc", *words], width)
    if next_words:
        yield from wrap_lines("      ", "to click the front: add --format html -o plans.html", DIM)


def front_lines(plans: Plans, width: int) -> Iterator[Line]:
    """The picture; nothing for one plan. The first of the front have their ranks."""
    front = [plans.plans[i] for i in plans.front]
    if len(front) < 2:
        return
    across, up = plan_axes(plans.plans)
    columns = width - LABEL - 2
    rows = [[" "] * columns for _ in range(HEIGHT)]
    others = [one for one in plans.plans if one not in front]
    for one in (*others, *sorted(front, key=lambda plan: -plan.rank)):
        text = "·" if one not in front else str(one.rank) if one.rank <= NAMED else "•"
        x = round(across.share(across.value(one)) * (columns - len(text)))
        y = round((1 - up.share(up.value(one))) * (HEIGHT - 1))
        rows[y][x : x + len(text)] = text
    ends = {0: up.high, HEIGHT - 1: up.low}
    for y, row in enumerate(rows):
        label = f"{seconds_text(ends[y])} {up.unit}".rstrip() if y in ends else ""
        yield [(label.rjust(LABEL) + " │", DIM), ("".join(row).rstrip(), "")]
    left, right = f"{seconds_text(across.low)} {across.unit}", f"{seconds_text(across.high)}"
    right += f" {across.title}"
    yield line(" " * (LABEL + 2) + left + right.rjust(columns - len(left)), DIM)
