"""Reads what programs printed: the lines that say something of memory, in their order."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise

from msgspec import Struct
from msgspec.structs import replace

from ...ledger.secrets import hide_command
from .figure import Figure
from .frames import Traceback, tracebacks
from .rows import Row, rows

BEGIN, END = 2 * 10**6, 6 * 10**6
"""Characters at the begin and the end of a text in which every row is looked for; of a longer one,
which repeats its steps, only those rows in between that can tell a cause (`anywhere`)."""
Spans = tuple[tuple[int, int], ...]
MOST_HITS = 20_000  # of a row; of more, the first and the last are read
SHOWN = 300  # characters of a line that are kept
COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class LogLine(Struct, frozen=True, kw_only=True):
    """A line that was read.

    - `line`: its number, from 1
    - `what`: what it says, one of the rows' words; `tool`: whose row it is
    - `figures`: by name; those of sizes end in `_bytes`
    - `text`: the line, without secrets
    """

    line: int
    what: str
    tool: str
    figures: dict[str, Figure | str]
    text: str

    def bytes_of(self, name: str) -> int | None:
        """The bytes of a size; None where the line does not say it."""
        figure = self.figures.get(f"{name}_bytes")
        return int(figure.value) if isinstance(figure, Figure) else None


class Log(Struct, frozen=True, kw_only=True, dict=True):
    """What was read of a text.

    - `lines`: in their order; `tracebacks`: the stacks around them
    - `left_out`: how many `characters` in the middle were not read for all, and how many lines that
      say the same as many others, by what they say
    """

    lines: tuple[LogLine, ...]
    tracebacks: tuple[Traceback, ...]
    left_out: dict[str, int]

    def of(self, *whats: str) -> list[LogLine]:
        """The lines that say one of these."""
        return [one for one in self.lines if one.what in whats]


def read_log(text: str) -> Log:
    """Everything that a text says of memory."""
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    if "\x1b" in text:
        text = COLOURS.sub("", text)
    left_out: dict[str, int] = {}
    ends: Spans = ((0, len(text)),)
    if len(text) > BEGIN + END:
        ends = ((0, BEGIN), (len(text) - END, len(text)))
        left_out["characters"] = len(text) - BEGIN - END
    found: list[tuple[int, LogLine]] = []
    for row in rows():
        spans = ((0, len(text)),) if row.anywhere else ends
        hits, skipped = _hits(text, row.words, spans)
        if skipped:
            left_out[row.what] = left_out.get(row.what, 0) + skipped
        for place, stop in pairwise((*hits, len(text))):
            line = _line(text, row, place, stop)
            if line is not None:
                found.append((place, line))
    found.sort(key=lambda one: one[0])
    lines = tuple(_once(_numbered(text, found)))
    return Log(lines=lines, tracebacks=tracebacks(text[-END:]), left_out=left_out)


def _hits(text: str, words: str, spans: Spans) -> tuple[list[int], int]:
    """The places of a row's words, and how many between them are left out."""
    places: list[int] = []
    for start, end in spans:
        at = text.find(words, start, end)
        while at >= 0:
            places.append(at)
            at = text.find(words, at + len(words), end)
    if len(places) <= MOST_HITS:
        return places, 0
    half = MOST_HITS // 2
    return [*places[:half], *places[-half:]], len(places) - MOST_HITS


def _line(text: str, row: Row, place: int, stop: int) -> LogLine | None:
    """The line at a place, where a row's pattern is in it.

    stop: the row's next place; what a line reaches ends in front of that one's line
    """
    start = text.rfind("\n", 0, place) + 1
    end = text.find("\n", place)
    end = len(text) if end < 0 else end
    if row.reach:
        next_line = text.rfind("\n", place, stop) if stop < len(text) else len(text)
        end = max(end, min(place + row.reach, next_line))
    match = row.pattern.compiled.search(text, start, end)
    if match is None:
        return None
    figures = row.pattern.figures(match)
    for pattern in row.more:
        more = pattern.compiled.search(text, match.end(), end)
        if more is not None:
            figures |= pattern.figures(more)
    shown = hide_command(" ".join(text[start:end].split())[:SHOWN])
    return LogLine(line=0, what=row.what, tool=row.tool, figures=figures, text=shown)


def _numbered(text: str, found: list[tuple[int, LogLine]]) -> Iterator[LogLine]:
    """The lines with their numbers."""
    number, counted = 1, 0
    for place, line in found:
        number += text.count("\n", counted, place)
        counted = place
        yield replace(line, line=number)


def _once(lines: Iterable[LogLine]) -> Iterator[LogLine]:
    """Each line once for what it says, though two rows may know a wording of it."""
    seen: dict[tuple[int, str], LogLine] = {}
    for line in lines:
        key = (line.line, line.what)
        if key not in seen or len(line.figures) > len(seen[key].figures):
            seen[key] = line
    yield from seen.values()
