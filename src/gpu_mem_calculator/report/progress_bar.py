"""A progress bar: one line of a terminal, redrawn in place."""

from __future__ import annotations

import os
import time
import unicodedata
from typing import TextIO

from .terminal import paint, wants_colour

ERASE_LINE, HIDE_CURSOR, SHOW_CURSOR = "\r\x1b[2K", "\x1b[?25l", "\x1b[?25h"
BAR_WIDTH, LEAST_BAR = 40, 10  # columns


def columns(text: str) -> int:
    """How many columns of a terminal a text takes. Wide characters take two (UAX 11)."""
    return sum(
        0 if unicodedata.combining(char) else 1 + (unicodedata.east_asian_width(char) in "WF")
        for char in text
    )


def shorten(text: str, width: int) -> str:
    """The text, or as much of its beginning as fits into the columns, with an ellipsis."""
    if columns(text) <= width:
        return text
    while text and columns(text) > width - 1:
        text = text[:-1]
    return f"{text}…" if width > 0 else ""


class ProgressBar:
    """One line that is redrawn in place: what runs, a bar, `3/4`, and the time. Erased at the end.

    It starts no thread: the process may fork while the line is shown.
    """

    def __init__(self, stream: TextIO, total: int) -> None:
        self.stream, self.total = stream, total
        self.finished, self.label, self.start = 0, "", time.monotonic()
        self.colour = wants_colour(stream)
        many_colours = "256color" in os.environ.get("TERM", "") or "COLORTERM" in os.environ
        names = ("pink-256", "green-256", "grey-256") if many_colours else None
        self.running, self.full, self.rest = names or ("bright-red", "green", "grey")
        try:
            "━╺╸…".encode(stream.encoding or "utf-8")
            self.unicode = True
        except UnicodeEncodeError:
            self.unicode = False

    def __enter__(self) -> ProgressBar:
        self.stream.write(HIDE_CURSOR)
        return self

    def __exit__(self, *_: object) -> None:
        self.stream.write(ERASE_LINE + SHOW_CURSOR)
        self.stream.flush()

    def show(self, label: str, finished: int | None = None) -> None:
        """Redraw the line with a new label, and after `finished` of the total."""
        self.label = label
        self.finished = self.finished if finished is None else finished
        self._draw()

    def erase(self) -> None:
        """Take the line away until it is shown again."""
        self.stream.write(ERASE_LINE)
        self.stream.flush()

    def print_above(self, text: str) -> None:
        """Write a line that stays, above the bar."""
        self.stream.write(f"{ERASE_LINE}{text}\n")
        self._draw()

    def _draw(self) -> None:
        self.stream.write(ERASE_LINE + self.line())
        self.stream.flush()

    def line(self) -> str:
        """The line as it is drawn, no wider than the terminal."""
        minutes, seconds = divmod(int(time.monotonic() - self.start), 60)
        counted = f"{self.finished:>{len(str(self.total))}}/{self.total}"
        passed = f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"
        # one space between the four parts, and the last column stays free: it would wrap
        from shutil import get_terminal_size

        free = get_terminal_size().columns - columns(counted) - columns(passed) - 4
        bar_width = max(LEAST_BAR, min(BAR_WIDTH, free - columns(self.label)))
        label = shorten(self.label, free - bar_width)
        parts = (label, self._bar(bar_width), self._paint(counted, "green"))
        line = " ".join((*parts, self._paint(passed, "yellow")))
        return line if self.unicode else line.translate(ASCII_BAR)

    def _bar(self, width: int) -> str:
        """A bar of `width` columns, in steps of half a column."""
        halves = int(width * 2 * self.finished / self.total)
        left = "━" * (halves // 2) + "╸" * (halves % 2)
        right = "━" * (width - len(left))
        if not self.colour:
            return left.ljust(width)
        if left and right and not halves % 2:
            right = "╺" + right[1:]
        return self._paint(left, self.running if right else self.full) + self._paint(
            right, self.rest
        )

    def _paint(self, text: str, style: str) -> str:
        return paint(text, style) if self.colour else text


ASCII_BAR = str.maketrans({"━": "-", "╺": " ", "╸": " ", "…": "."})
