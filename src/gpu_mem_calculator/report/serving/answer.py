"""The answer about a server on one screen: users, memory, speed, and what to change."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from itertools import zip_longest

from ...advice.serving.answers import Answers
from ...advice.serving.changes import ServingChange
from ...estimates.calculator import Estimate
from ...estimates.fit_verdict import FITS, SHORT
from ...estimates.serving.capacity import ContextUsers
from ...estimates.serving.infer_command import InferCommand
from ...run.cuda.runtimes import in_words_of
from ..headline import STYLES, headline, undecided_lines
from ..lines import BOLD, DIM, WARN, WIDTH, Line, command, gib, line, wrap_lines
from ..progress_bar import shorten
from .parts import busiest_rank, memory_bar, memory_parts
from .words import best_changes, change_gain, speed_words, start_lines, verdict_words

MOST_LINES = 21  # below them the line to be pasted takes up to three
SHOWN_CONTEXTS = 4
LEFT = 50  # columns of the table of parts; users are right of it
Section = list[Line]


def short_answer(estimate: Estimate, answers: Answers, asked: InferCommand) -> list[Line]:
    """At most 21 lines; what does not fit is left to --long, the least important first."""
    for shown in (2, 1):
        changes = [_change(estimate, one) for one in best_changes(estimate, answers)[:shown]]
        for spaced, brief in ((True, False), (False, False), (False, True)):
            lines = _sections(estimate, answers, asked, changes, spaced=spaced, brief=brief)
            if len(lines) <= MOST_LINES:
                return lines
    return lines[:MOST_LINES]


def _sections(
    estimate: Estimate,
    answers: Answers,
    asked: InferCommand,
    changes: Sequence[Section],
    *,
    spaced: bool,
    brief: bool,
) -> list[Line]:
    """The whole answer; blank lines if `spaced`, sections shortened if `brief`."""
    tail = [*_speed(estimate, answers, brief=brief), *_start(estimate)]
    ends = [*_remarks(estimate, brief=brief), _details(asked)]
    sections = [
        [*_verdict(estimate, answers), *headline(estimate)],
        list(_table(estimate, answers)),
        tail,
        [row for change in changes for row in change],
        ends,
    ]
    blank = [line()] if spaced else []
    rows = [row for section in sections if section for row in (*section, *blank)]
    return rows[: len(rows) - len(blank)]


def _verdict(estimate: Estimate, answers: Answers) -> Iterator[Line]:
    """The verdict and its margin, and the bar."""
    yield from wrap_lines("", verdict_words(estimate, answers), STYLES[estimate.result.verdict])
    yield from undecided_lines(estimate.result)
    if answers.largest_context and estimate.result.verdict != SHORT:
        may = any(one.adds_bytes != 0 for one in estimate.result.limits)
        fits = "may fit" if may else "fits"
        yield line(f"largest context that {fits}: {answers.largest_context:,} tokens")
    yield memory_bar(estimate, memory_parts(estimate))


def _table(estimate: Estimate, answers: Answers) -> Iterator[Line]:
    """The parts of the memory, and users by context beside them."""
    parts, served = memory_parts(estimate), busiest_rank(estimate)
    left: list[Line] = [[("GiB per GPU", BOLD)]]
    for part in parts:
        tokens = served.tokens if served and part.title == "KV cache" else 0
        says = f"  {tokens:,} tokens" if tokens else ""
        figure = f" {part.title:<14}{gib(part.bytes, 2):>9}"
        left.append([(part.shade, part.colour), (figure, ""), (says, DIM)])
    total = sum(part.bytes for part in parts)
    figure = f"  {'total':<14}{gib(total, 2):>9}"
    left.append([(figure, BOLD), (f"  {_total_words(estimate, total)}", DIM)])
    for row, cells in zip_longest(left, _users(answers.users), fillvalue=None):
        spans = row or [("", "")]
        gap = LEFT - sum(len(text) for text, _ in spans)
        yield [*spans, (" " * gap, ""), *(cells or [])]


def _total_words(estimate: Estimate, total: int) -> str:
    """Which number of another tool the total is."""
    serving = estimate.result.serving
    if serving is None:
        return "what the GPU must have"
    if not serving.problem:
        return in_words_of(estimate.resolved.run.runtime, "what nvidia-smi shows")
    hardware = estimate.resolved.hardware
    if total <= hardware.memory_bytes:
        return ""
    return "more than the GPU has" if total > hardware.card_bytes else "more than is free"


def _users(rows: Sequence[ContextUsers]) -> list[Line]:
    """Users by context, the longest last."""
    shown = [*rows[::-2][:SHOWN_CONTEXTS][::-1]] if len(rows) > SHOWN_CONTEXTS else list(rows)
    if not shown:
        return []
    head: Line = [(f"{'tokens each':>14}{'users':>12}", BOLD)]
    return [head, *([(f"{row.context:>14,}{row.users:>12,}", "")] for row in shown)]


def _speed(estimate: Estimate, answers: Answers, *, brief: bool) -> list[Line]:
    """The speed to expect of a server that starts."""
    serving = estimate.result.serving
    if serving is not None and serving.problem:
        return []
    if answers.speed is None:
        return [] if brief else wrap_lines("", answers.no_speed, DIM)
    return wrap_lines("speed: ", speed_words(answers.speed))


def _start(estimate: Estimate) -> list[Line]:
    serving = estimate.result.serving
    if serving is None or serving.problem or not serving.command:
        return []
    return start_lines(serving.command)


def _change(estimate: Estimate, change: ServingChange) -> Section:
    """A change, what it brings and costs, and the command with it."""
    gain = change_gain(estimate, change)
    more = "less memory with" if gain.startswith("takes") else "more with"
    verb = more if estimate.result.figures_fit else "fits with"
    if estimate.result.verdict == FITS and verb != more:
        verb = "all layers on GPUs with"
    cost = f" ({change.cost})" if change.cost and change.cost != "more GPUs" else ""
    says = f"{gain}{cost}"
    if len(verb) + len(change.title) + len(says) + 3 > WIDTH:
        says = gain
    title = wrap_lines("", f"{verb} {change.title}: {says}", BOLD)
    return [*title, *command("  ", shlex.split(change.command))]


def _remarks(estimate: Estimate, *, brief: bool) -> Iterator[Line]:
    """Warnings about the run, and what was assumed; notes of the engine are left to --long."""
    about_model = estimate.resolved.model.assumed  # first: a line is cut off at its end
    others = (text for text in estimate.result.assumed if text not in about_model)
    assumed = "; ".join((*about_model, *others))
    rows = [("note: ", warning, WARN) for warning in estimate.resolved.warnings]
    for label, text, style in [*rows, ("assumed: ", assumed, "")] if assumed else rows:
        shown = shorten(text, WIDTH - len(label)) if brief else text
        yield from wrap_lines(label, shown, style)


def _details(asked: InferCommand) -> Line:
    words = shlex.join(asked.words())
    text = f"{words} --long"
    return [("details: ", BOLD), (text if len(text) <= WIDTH - 9 else "add --long", "cyan")]
