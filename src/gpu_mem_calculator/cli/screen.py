"""A terminal on which an answer grows: what is known of it, and below what is still looked for.

The finished screen is what a pipe or a file gets, which get nothing else.
"""

from __future__ import annotations

import sys

from ..report.lines import DIM, colour_text, line, plain
from ..report.progress_bar import ERASE_LINE, shorten
from ..report.progress_bar import columns as text_columns
from ..report.terminal import takes_escapes, wants_colour
from .output import NARROWEST, show, write_stdout
from .streams import erase_on_interrupt

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..report.lines import Line

UP, ERASE_BELOW = "\x1b[{}F", "\x1b[J"


class Screen:
    """The lines of an answer on a terminal, which may change until it is finished.

    - shown: the lines that are on the terminal
    - waiting: whether a line below them says what is looked for
    """

    def __init__(self, output: str | None, *, grows: bool = True) -> None:
        self.output, self.waiting = output, False
        self.shown: Sequence[Line] = ()
        self.live = grows and output is None and takes_escapes(sys.stdout)
        if self.live:
            from shutil import get_terminal_size

            self.columns, self.rows = get_terminal_size()
            self.live = self.columns >= NARROWEST
        if self.live:
            erase_on_interrupt(ERASE_LINE)

    def __enter__(self) -> Screen:
        return self

    def __exit__(self, *_: object) -> None:
        if self.waiting:
            write_stdout(ERASE_LINE)

    def sketch(self, lines: Callable[[], Sequence[Line]], sought: str, *, last: bool) -> None:
        """Show the lines so far and what is looked for, on a terminal.

        `last`: these lines do not change any more. Others are only shown where the terminal has
        enough rows to replace them.
        """
        if not self.live:
            return
        found = lines()
        if not last and self._height(found) >= self.rows:
            found = self.shown
        waits = shorten(f"looking for {sought} ...", self.columns - 1)
        waits = _text([line(waits, DIM)]).rstrip("\n")
        write_stdout(self._change(found) + waits)
        self.shown, self.waiting = found, True

    def finish(self, lines: Sequence[Line]) -> None:
        """Show the finished lines."""
        if self.waiting:
            write_stdout(self._change(lines))
            self.waiting = False
        else:
            show(lines, self.output)

    def _change(self, lines: Sequence[Line]) -> str:
        """The text that makes the terminal show some lines, and nothing below them."""
        pairs = enumerate(zip(self.shown, lines, strict=False))
        least = min(len(self.shown), len(lines))
        same = next((number for number, (old, new) in pairs if old != new), least)
        rows = self._height(self.shown[same:])
        erased = ERASE_LINE if self.waiting else ""
        up = UP.format(rows) + ERASE_BELOW if rows else ""
        return erased + up + _text(lines[same:])

    def _height(self, lines: Sequence[Line]) -> int:
        """The rows that some lines take."""
        widths = (sum(text_columns(text) for text, _ in spans) for spans in lines)
        return sum(max(1, -(-width // self.columns)) for width in widths)


def _text(lines: Sequence[Line]) -> str:
    if wants_colour(sys.stdout):
        return colour_text(lines)
    return plain(lines) + "\n" if lines else ""
