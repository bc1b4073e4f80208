"""Several answers of `check` as lines: each by its name, and those that are on one GPU together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..estimates.checked import Checked, SharedGpu
from ..estimates.fit_verdict import FITS, UNSURE, WORDS
from ..report.headline import STYLES
from ..report.lines import BOLD, Line, line, wrap_lines


def several_lines(
    checked: Sequence[Checked], shared: Sequence[SharedGpu], verdict: str
) -> Iterator[Line]:
    """The worst verdict with what decides it, then each answer under the names of its commands."""
    alone = [one for one in checked if verdict in (_word(one), FITS)]
    reasons = [gpu.text for gpu in shared if gpu.verdict == verdict]
    reasons += dict.fromkeys(one.reading.name or one.reading.tool for one in alone)
    yield from wrap_lines("", f"{WORDS[verdict]}: {'; '.join(reasons)}", STYLES[verdict])
    for gpu in shared:
        if gpu.verdict != verdict:
            yield from wrap_lines("", f"{WORDS[gpu.verdict]}: {gpu.text}", STYLES[gpu.verdict])
    yield line()
    done: list[Sequence[Line]] = []
    for one in checked:
        if one.lines in done or not one.lines:
            continue
        done.append(one.lines)
        for name in (other.reading.name for other in checked if other.lines == one.lines):
            yield line(name or one.reading.tool, BOLD)
        yield from one.lines
        yield line()


def _word(one: Checked) -> str:
    """The verdict of an answer; one that cannot be read is open."""
    return one.result.verdict if one.result is not None else UNSURE
