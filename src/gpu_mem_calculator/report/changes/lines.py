"""The runs of changed configurations as lines for a screen."""

from __future__ import annotations

from collections.abc import Iterator

from ...estimates.changed_runs import BAD, ChangedRun, Changes
from ..headline import STYLES
from ..lines import BOLD, WIDTH, Line, command, gib, line, wrap_lines

OF_VERDICT = {**STYLES, BAD: BOLD}


def changes_lines(changes: Changes, *, long: bool = False) -> Iterator[Line]:
    """The counts of verdicts, then each run; with `long` also the files that were passed over."""
    yield from wrap_lines("", f"{changes.sentence}; compared with {changes.base[:12]}", BOLD)
    for run in changes.runs:
        yield line()
        yield line(run.title, BOLD)
        if run.after is not None:
            yield from wrap_lines("  ", run.after.sentence, OF_VERDICT[run.after.verdict])
        yield from wrap_lines("  ", change_words(run))
        for remedy in run.remedies:
            yield from wrap_lines("  ", remedy.words)
            yield from command("    ", remedy.options.split(), WIDTH)
    if changes.passed_over or changes.others:
        yield line()
        yield from wrap_lines("", passed_words(changes) + ("" if long else " (--long names them)"))
    for path, why in changes.passed_over.items() if long else ():
        yield from wrap_lines("  ", f"{path}: {why}")


def change_words(run: ChangedRun) -> str:
    """`before: 10.3 GiB per GPU, now 12.9 (+2.6)`; whether it is new, or gone."""
    before, after = run.before, run.after
    if before is None:
        return "new"
    if after is None:
        return f"removed; before: {before.words}"
    then, now = before.takes_bytes, after.takes_bytes
    if then is None:
        return f"before: {before.words}; {before.sentence}"
    figures = "" if now is None else f", now {gib(now)} ({_signed(now - then)})"
    word = "" if before.words == after.words else f" ({before.words})"
    return f"before: {gib(then)} GiB per GPU{word}{figures}"


def _signed(size: int) -> str:
    figure = gib(abs(size))
    return "no change" if figure == "0.0" else f"{'+' if size > 0 else '-'}{figure}"


def passed_words(changes: Changes) -> str:
    """How many changed files are no configuration."""
    count = len(changes.passed_over) + changes.others
    return f"{count} changed file{'s' * (count > 1)} passed over: no configuration"
