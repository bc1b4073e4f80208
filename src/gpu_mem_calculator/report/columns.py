"""A text table whose columns are as wide as their contents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .lines import DIM, WIDTH, Line, line


def columns(head: Sequence[str], rows: Sequence[Sequence[str]], right: set[int]) -> Iterator[Line]:
    """A heading and rows; columns in `right` are right-aligned, long lines are shortened."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    for number, row in enumerate((head, *rows)):
        cells = [
            cell.rjust(widths[i]) if i in right else cell.ljust(widths[i])
            for i, cell in enumerate(row)
        ]
        text = "  ".join(cells).rstrip()
        text = text if len(text) <= WIDTH else text[: WIDTH - 1] + "…"
        yield line(text, DIM if number == 0 else "")
