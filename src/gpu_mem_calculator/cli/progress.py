"""How far many cases have come: a bar on a terminal, a line a case everywhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..core.errors import printable, tell
from ..measure.cases_file import MeasureCase
from .output import write

Heard = Callable[[MeasureCase, str], None]


@contextmanager
def progress(
    cases: list[MeasureCase], *, aside: bool = False
) -> Iterator[tuple[Heard, Callable[[str], None]]]:
    """On a terminal a bar with the phase at work; a line for each finished case everywhere.

    `aside` keeps stdout free for the answer.
    """

    def plainly(text: str) -> None:
        if aside:
            tell(text, begins="")
        else:
            write(text)

    if not sys.stderr.isatty():
        yield (lambda case, phase: None), plainly
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    parts = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
             TimeElapsedColumn())  # fmt: skip
    # No thread of its own: a fork while it draws would leave its lock taken in the child.
    with Progress(*parts, console=Console(stderr=True), transient=True, auto_refresh=False) as bar:
        task = bar.add_task(printable(cases[0].id), total=len(cases))

        def heard(case: MeasureCase, phase: str) -> None:
            bar.update(task, description=printable(f"{case.id} {phase}"), refresh=True)

        def finished(text: str) -> None:
            if aside or sys.stdout.isatty():
                bar.console.print(text, highlight=False, markup=False)
            else:
                write(text)
            bar.update(task, advance=1, refresh=True)

        yield heard, finished
