"""Progress over many cases: a bar on a terminal, and a line for each finished case."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..core.errors import print_to_stderr, printable
from ..measure.cases_file import MeasureCase
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

    if not sys.stderr.isatty():
        yield (lambda case, phase: None), write_line
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    bar_columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    # No refresh thread: a fork while it draws would leave its lock taken in the child.
    with Progress(
        *bar_columns, console=Console(stderr=True), transient=True, auto_refresh=False
    ) as bar:
        task = bar.add_task(printable(cases[0].id), total=len(cases))

        def on_phase(case: MeasureCase, phase: str) -> None:
            bar.update(task, description=printable(f"{case.id} {phase}"), refresh=True)

        def finished(text: str) -> None:
            if stdout_taken or sys.stdout.isatty():
                bar.console.print(text, highlight=False, markup=False)
            else:
                write(text)
            bar.update(task, advance=1, refresh=True)

        yield on_phase, finished
