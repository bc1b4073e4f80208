"""The short answer, on one screen: the verdict, the parts, remedies, what was assumed."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from ..advice.training.answers import REMEDIES, TrainingAnswers
from ..estimates.calculator import Estimate
from .headline import asked_words, verdict
from .lines import BOLD, DIM, WARN, WIDTH, Line, gib, line, part_row, wrap_lines
from .longest_sequence import failure_words, longest_sequence_words
from .parts import BreakdownRow, parts
from .progress_bar import shorten
from .remedy_lines import Commands, short_remedy

LINES = 21  # below them the line to be pasted takes up to three
ASKED = 3  # lines for what was asked
NAME, FIGURE, BAR = 21, 10, 10
NARROW = 64  # columns below which the table has no descriptions
MERGED = ("temporaries", "communication", "runtime")
BUFFERS = "temporaries, buffers"


def short_answer(
    estimate: Estimate,
    answers: TrainingAnswers,
    commands: Commands,
    notes: Sequence[str] = (),
    width: int = WIDTH,
    asides: Sequence[str] = (),
) -> list[Line]:
    """The answer in at most 21 lines of 80 columns; notes: what was chosen for the user; asides:
    sentences that are shown in any case. Without what is still looked for.
    """
    known = answers.sought in ("", REMEDIES)
    longest = longest_sequence_words(estimate, answers.longest_sequence) if known else ""
    blocks = [
        [
            *verdict(estimate, width),
            *(one for text in failure_words(estimate.result) for one in wrap_lines("", text)),
        ],
        cut(wrap_lines("", asked_words(estimate), "", width), ASKED),
        list(parts_lines(estimate, width)),
        [
            one
            for text in (*_batches(estimate), longest, *asides)
            if text
            for one in wrap_lines("", text, width=width)
        ],
    ]
    assumed = assumed_lines(estimate, notes, width, 1, asides)
    left = LINES - sum(map(len, blocks)) - len(assumed)
    if left < 0:
        blocks[1] = cut(blocks[1], max(1, len(blocks[1]) + left))
    for remedy, words in zip(answers.remedies, commands.remedies, strict=True):
        lines = short_remedy(remedy, words, left, width)
        if lines is not None:
            blocks[-1] += lines
            left -= len(lines)
    blocks.append(assumed_lines(estimate, notes, width, 1 + min(1, left), asides))
    detailed = shlex.join(commands.detailed or [*commands.run, "--long"])
    return on_one_screen(blocks, f"details: gpu-mem-calc {detailed}", width)


def _batches(estimate: Estimate) -> Iterator[str]:
    """What is said of batches that differ in length."""
    if estimate.result.lengths is not None:
        from .lengths_words import lengths_words

        yield from lengths_words(estimate.result)


def on_one_screen(blocks: Sequence[list[Line]], details: str, width: int = WIDTH) -> list[Line]:
    """The blocks with the details and with blank lines between them, as far as there are lines."""
    shown = [block for block in blocks if block]
    left = LINES - sum(map(len, shown))
    if left > 0 and len(details) <= width:
        shown[-1] = [*shown[-1], line(details, DIM)]
        left -= 1
    lines: list[Line] = []
    for number, block in enumerate(shown):
        if 0 < number <= left:
            lines.append(line())
        lines += block
    return lines


def cut(lines: list[Line], most: int) -> list[Line]:
    """At most so many lines, the last with an ellipsis where some are left out."""
    if len(lines) <= most:
        return lines
    if not most:
        return []
    *spans, (text, style) = lines[most - 1]
    used = sum(len(piece) for piece, _ in spans)
    return [
        *lines[: most - 1],
        [*spans, (text[: WIDTH - used - 2].rpartition(" ")[0] + " …", style)],
    ]


def parts_lines(estimate: Estimate, width: int = WIDTH) -> Iterator[Line]:
    """The parts at the peak, with bars, and their total: the number to compare with the card."""
    text = width - NAME - FIGURE - BAR - 2 if width >= NARROW else 0
    rows = list(merged(parts(estimate, text)))
    most = max(row.bytes for row in rows)
    for row in rows:
        left = f"{row.title:<{NAME}}{shorten(row.text, text):<{text}}"
        yield part_row(left, row.bytes, most, row.style, FIGURE, BAR)
    total = gib(sum(row.bytes for row in rows), 2)
    peak = f"at the peak, {estimate.result.peak_instant}"
    if len(estimate.ledgers) > 1:
        peak += f", stage {estimate.result.busiest_stage}"
    yield [
        (f"{'total':<{NAME}}{shorten(peak, text - 1):<{text}}{total:>{FIGURE}}", BOLD),
        ("  GiB needed", DIM),
    ]


def merged(rows: Sequence[BreakdownRow]) -> Iterator[BreakdownRow]:
    """The rows with temporaries, communication buffers and workspaces as one."""
    small = [row for row in rows if row.title in MERGED]
    for row in rows:
        if row.title not in MERGED:
            yield row
        elif row is small[0]:
            largest = max(small, key=lambda one: one.bytes)
            total = sum(one.bytes for one in small)
            yield BreakdownRow(BUFFERS, largest.text, total, largest.style)


def assumed_lines(
    estimate: Estimate, notes: Sequence[str], width: int, most: int, said: Sequence[str] = ()
) -> list[Line]:
    """Warnings first, then what was chosen or assumed for the user: whole items, as many as fit in
    `most` lines, and the number of the others. What is `said` elsewhere is not repeated.
    """
    warnings = [text for text in estimate.result.warnings if text not in said]
    texts = [text.rstrip(".") for text in (*warnings, *notes, *estimate.result.assumed)]
    label, style = ("note: ", WARN) if warnings else ("assumed: ", "")
    lines = wrap_lines(label, "see --long", style, width) if texts else []
    shown: list[str] = []
    for text in texts:
        tried = [*shown, text]
        left = len(texts) - len(tried)
        last = [f"and {left} more (--long)"] if left else []
        wrapped = wrap_lines(label, "; ".join([*tried, *last]), style, width)
        if len(wrapped) <= most:
            lines, shown = wrapped, tried
    return lines
