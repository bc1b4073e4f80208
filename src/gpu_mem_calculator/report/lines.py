"""Text layout: lines of (text, style) spans, tables, and bars of block characters."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import pairwise

from ..ledger.units import GIB, KIB, MIB
from ..ledger.units import count as count
from ..ledger.units import gib as gib
from ..runfile.text.errors import printable
from .terminal import paint

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import TypeAlias

Span: TypeAlias = tuple[str, str]  # text, and a style of terminal.CODES ("" for none)
Line: TypeAlias = list[Span]

WIDTH = 80
SCREEN = 24  # rows of a terminal
BOLD, DIM, GOOD, BAD, WARN = "bold", "dim", "bold green", "bold red", "yellow"
FULL, EMPTY, LIMIT = "█", "░", "│"
SPACES = str.maketrans("\t\n\v\f\r", " " * 5)


def line(text: str = "", style: str = "") -> Line:
    """A line with one span."""
    return [(text, style)]


def plain(lines: Iterable[Line]) -> str:
    """The lines as text without any escape codes."""
    return "\n".join("".join(printable(text) for text, _ in spans).rstrip() for spans in lines)


def colour_text(lines: Sequence[Line]) -> str:
    """The lines with the escape codes of a colour terminal."""
    return "".join(
        "".join(paint(printable(text), style) for text, style in spans) + "\n" for spans in lines
    )


def wrap_lines(label: str, text: str, style: str = "", width: int = WIDTH) -> list[Line]:
    """The lines of a text after a label; continued lines are indented to the label's width."""
    indent = " " * len(label)
    return [
        [(label if i == 0 else indent, BOLD if label.strip() else ""), (piece, style)]
        for i, piece in enumerate(folded(text, width - len(label)) or [""])
    ]


def with_pasted(lines: Iterable[Line], text: str) -> list[Line]:
    """The lines of an answer with the one made to be pasted as the last; it is not folded, so that
    it is copied as one. An empty line is above it, unless a screen has no room for that.
    """
    above = [*lines]
    room = SCREEN - len(above) - -(-len(text) // WIDTH)
    return [*above, *([line()] if room != 0 else []), line(text)]


def folded(text: str, width: int) -> list[str]:
    """The rows of a text, as textwrap breaks it between words; its import takes longer."""
    pieces = re.split("( +)", text.expandtabs().translate(SPACES))
    left, rows = list(filter(None, reversed(pieces))), list[str]()
    while left:
        row, room = list[str](), width
        if rows and not left[-1].strip():
            left.pop()
        while left and len(left[-1]) <= room:
            room -= len(left[-1])
            row.append(left.pop())
        if left and len(left[-1]) > width:  # a word that no row has room for
            word = left.pop()
            row.append(word[: max(room, width < 1)])
            left.append(word[max(room, width < 1) :])
        if row and not row[-1].strip():
            row.pop()
        if row:
            rows.append("".join(row))
    return rows


def command(label: str, words: Sequence[str], width: int = WIDTH) -> list[Line]:
    """The lines of a shell command after a label, continued with backslashes where it is long."""
    import shlex

    pieces = [shlex.quote(word) for word in words]
    groups: list[str] = []
    for piece in pieces:  # an option stays with its value
        if groups and groups[-1].startswith("--") and " " not in groups[-1] and piece[:1] != "-":
            groups[-1] += f" {piece}"
        else:
            groups.append(piece)
    rows = [groups[0]]
    for group in groups[1:]:
        if len(rows[-1]) + len(group) + 3 > width - len(label):
            rows[-1] += " \\"
            rows.append(f"  {group}")
        else:
            rows[-1] += f" {group}"
    indent = " " * len(label)
    return [[(label if i == 0 else indent, BOLD), (row, "cyan")] for i, row in enumerate(rows)]


def size(num_bytes: int) -> str:
    """Bytes in GiB, MiB or KiB, the largest unit that is not below 1."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if abs(num_bytes) >= unit:
            return f"{num_bytes / unit:,.2f} {name}"
    return f"{num_bytes} bytes"


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


def bar(value: float, full: float, width: int) -> str:
    """A bar of length width × value / full; at least one character for a value above 0."""
    if value <= 0 or full <= 0:
        return ""
    return FULL * min(width, max(1, round(width * value / full)))


def part_row(left: str, size: int, most: int, style: str, figure: int, width: int) -> Line:
    """A row of a table of parts: GiB in `figure` columns, and a bar of at most `width`."""
    return [(left, ""), (gib(size, 2).rjust(figure), ""), (f"  {bar(size, most, width)}", style)]


def gauge(share: float, width: int) -> str:
    """A bar with a filled part of `share` and an empty part; completely filled above 1."""
    filled = min(width, max(0, round(width * share)))
    return FULL * filled + EMPTY * (width - filled)


def stack_widths(values: Sequence[int], full: int, width: int) -> list[int]:
    """The number of characters for each part; their sum is the rounded sum, so bars align."""
    ends = [0]
    total = 0
    for value in values:
        total += value
        ends.append(round(width * total / full) if full else 0)
    return [b - a for a, b in pairwise(ends)]
