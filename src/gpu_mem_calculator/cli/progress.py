"""Progress over many cases: a bar on a terminal, and a line for each finished case."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..lab.measure.cases_file import MeasureCase
from ..report.progress_bar import ProgressBar
from ..report.terminal import takes_escapes
from ..runfile.text.errors import print_to_stderr, printable
from .output import write

OnPhase = Callable[[MeasureCase, str], None]


@contextmanager
def progress(
    cases: list[MeasureCase], *, stdout_taken: bool = False
) -> Iterator[tuple[OnPhase, Callable[[str], None]]]:
    """Yields two functions: one shows the phase of a case, the other a finished case's line.

    On a terminal the phase is in a progress bar, elsewhere it is not shown. `stdout_taken` sends
    the lines to stderr, where stdout is for the result.
    """

    def write_line(text: str) -> None:
        if stdout_taken:
            print_to_stderr(text, begins="")
        else:
            write(text)

    if not takes_escapes(sys.stderr):
        yield (lambda case, phase: None), write_line
        return
    with ProgressBar(sys.stderr, len(cases)) as bar:
        bar.show(printable(cases[0].id))

        def on_phase(case: MeasureCase, phase: str) -> None:
            bar.show(printable(f"{case.id} {phase}"))

        def finished(text: str) -> None:
            if stdout_taken or sys.stdout.isatty():
                bar.print_above(printable(text))
            else:
                write(text)
            bar.show(bar.label, bar.finished + 1)

        yield on_phase, finished
