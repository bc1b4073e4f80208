"""Colours on a terminal, in escape codes of ECMA-48 and xterm."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TextIO

CODES = {
    "bold": "1",
    "dim": "2",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "blue": "34",
    "magenta": "35",
    "cyan": "36",
    "white": "37",
    "bright-red": "91",
    "grey": "90",
    "pink-256": "38;5;197",
    "green-256": "38;5;70",
    "grey-256": "38;5;237",
}


def takes_escapes(stream: TextIO) -> bool:
    """Whether a stream is a terminal that interprets escape codes."""
    known = os.name != "nt" or "WT_SESSION" in os.environ or "TERM" in os.environ
    return stream.isatty() and os.environ.get("TERM") != "dumb" and known


def wants_colour(stream: TextIO) -> bool:
    """Whether to write colours. NO_COLOR turns them off, FORCE_COLOR on, in this order; else
    they are for terminals.
    """
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or takes_escapes(stream)


def paint(text: str, style: str) -> str:
    """The text in a style, which is names of `CODES` with spaces between."""
    codes = ";".join(CODES[name] for name in style.split())
    return f"\x1b[{codes}m{text}\x1b[0m" if text and codes else text
