"""Text layout: lines of (text, style) spans."""

from __future__ import annotations

from ..ledger.units import GIB, KIB, MIB
from ..ledger.units import count as count
from ..ledger.units import gib as gib
from ..runfile.text.errors import printable
from .terminal import paint

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import TypeAlias

Span: TypeAlias = tuple[str, str]  # text, and a style of terminal.CODES ("" for none)
Line: TypeAlias = list[Span]

WIDTH = 80
BOLD, DIM, GOOD, BAD, WARN = "bold", "dim", "bold green", "bold red", "yellow"


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
    import textwrap

    indent = " " * len(label)
    folded = textwrap.wrap(
        text, width - len(label), break_long_words=True, break_on_hyphens=False
    ) or [""]
    return [
        [(label if i == 0 else indent, BOLD if label.strip() else ""), (piece, style)]
        for i, piece in enumerate(folded)
    ]


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
