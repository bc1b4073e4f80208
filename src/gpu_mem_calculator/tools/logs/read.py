"""Reads what programs printed: the lines that say something of memory, in their order.

The rows of what is read: `[[line]]` of the tools' `log.toml` and of the files here.

- `what`: one word for what a line says; several rows can have the same, one for each wording
- `words`: what every such line has, by which it is found
- `pattern`: a regular expression in which `{name:kind}` stands for a figure. A space is any white
  space. Kinds: `size` (a number with its unit), `gib`, `mib`, `bytes` (a size whose unit is not
  printed), `count`, `number`, `word`, `text`
- `more`: patterns that are looked for behind the first, each of which may be missing
- `reach`: how many characters a line may have, with those that follow it; 0: its end
- `anywhere`: it is looked for also in the middle of a long text
- `decimal`: GB is 1,000,000,000 bytes
- `alone`: it is read only in a line of which no row reads what can tell a cause
- `source`: the file and release that print it
- `examples`: lines as they are printed, with their figures as they are printed, by name
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, lru_cache
from itertools import pairwise
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ...catalog.kept import read_table
from ...ledger.secrets import NOT_KEPT, hide_command, hide_long
from ..rows import FOLDER
from .figure import Figure, number, size
from .frames import Traceback, tracebacks
from .set_up import set_up

FILE = "log.toml"
SET_UP = "set_up"  # what a line says that is no row's
SAID = "oom_said"  # people's words for it
HERE = os.path.dirname(__file__)
NUMBER = r"-?\d[\d,]*(?:\.\d+)?"
UNIT = r"(?:[kKMGT]i?B?|[bB]ytes|B)(?![A-Za-z])"
KINDS = {
    "size": rf"(?P<NAME>{NUMBER})\s*(?P<NAME_unit>{UNIT})",
    **dict.fromkeys(("gib", "mib", "bytes", "number"), rf"(?P<NAME>{NUMBER})"),
    "count": r"(?P<NAME>-?\d[\d,]*)",
    "word": r"(?P<NAME>[^\s,;()\[\]'\"]+)",
    "text": r"(?P<NAME>[^\n]+?)",
}
PRINTED_IN = {"gib": "GiB", "mib": "MiB", "bytes": "B"}
SIZES = ("size", *PRINTED_IN)
HOLE = re.compile(r"\{(\w+):(\w+)\}")
BEGIN, END = 2 * 10**6, 6 * 10**6
"""Characters at the begin and the end of a text in which every row is looked for; of a longer one,
which repeats its steps, only those rows in between that can tell a cause (`anywhere`)."""
Spans = tuple[tuple[int, int], ...]
MOST_LINES = 4 * 10**6  # of a text, from which on its distinct lines are not looked for
FEW = 8  # times shorter than the text, from which on the distinct lines are searched first
ZEROS = str.maketrans("123456789", "0" * 9)
MOST_HITS = 500  # of a row; of more, the first and the last are read
LONG = 1_000  # characters on both sides of a row's words that are looked at
SHOWN = 300  # characters of a line that are kept
COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


CSV_HEAD = re.compile(
    r"^[^\n]*\b(?:memory\.(?:used|total|free)|used_(?:gpu_)?memory)\b[^\n]*", re.M
)
# Columns of `nvidia-smi --query-gpu=... --format=csv`, and what they are called here.
CSV_SIZES = {
    **{f"memory.{one}": one for one in ("used", "total", "free")},
    **dict.fromkeys(("used_gpu_memory", "used_memory"), "used"),
}
CSV_WORDS = {"pid": "pid", "process_name": "name", "name": "card", "index": "gpu"}


class Pattern(Struct, frozen=True):
    """A compiled pattern, and the kind of each of its figures."""

    compiled: re.Pattern[str]
    kinds: Mapping[str, str]
    decimal: bool

    def figures(self, found: re.Match[str]) -> dict[str, Figure | str]:
        """The figures of a match, a size under a name that ends in `_bytes`."""
        figures: dict[str, Figure | str] = {}
        for name, kind in self.kinds.items():
            printed = found[name]
            if printed is None:
                continue
            if kind in SIZES:
                unit = PRINTED_IN.get(kind) or found[f"{name}_unit"]
                figures[f"{name}_bytes"] = size(printed, unit, decimal=self.decimal)
            else:
                figures[name] = printed.strip() if kind in ("word", "text") else number(printed)
        return figures


class LineRow(Struct, frozen=True):
    """What one line is recognised by."""

    tool: str
    what: str
    words: str
    pattern: Pattern
    more: tuple[Pattern, ...]
    reach: int
    anywhere: bool
    alone: bool


def _pattern(text: str, *, decimal: bool) -> Pattern:
    kinds: dict[str, str] = {}

    def hole(found: re.Match[str]) -> str:
        name, kind = found.groups()
        kinds[name] = kind
        return KINDS[kind].replace("NAME", name)

    form = HOLE.sub(hole, text.replace(" ", r"\s+"))
    return Pattern(re.compile(form, re.MULTILINE), kinds, decimal)


def tables() -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Each table with the name of its tool: its folder's, or that of the file here."""
    for folder in sorted(os.listdir(FOLDER)):
        path = os.path.join(FOLDER, folder, FILE)
        if os.path.isfile(path):
            yield folder, read_table(path)
    for name in sorted(os.listdir(HERE)):
        if name.endswith(".toml"):
            yield name.removesuffix(".toml"), read_table(os.path.join(HERE, name))


@cache
def rows() -> tuple[LineRow, ...]:
    """All rows."""
    return tuple(_row(tool, row) for tool, table in tables() for row in table["line"])


def _row(tool: str, row: Mapping[str, Any]) -> LineRow:
    decimal = row.get("decimal", False)
    return LineRow(
        tool=tool,
        what=row["what"],
        words=row["words"],
        pattern=_pattern(row["pattern"], decimal=decimal),
        more=tuple(_pattern(one, decimal=decimal) for one in row.get("more", ())),
        reach=row.get("reach", 0),
        anywhere=row.get("anywhere", False),
        alone=row.get("alone", False),
    )


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
    - `set_up`: numbers of the set-up by their names, which no row knows
    - `left_out`: how many `characters` in the middle were not read for all, and how many lines that
      say the same as many others, by what they say
    """

    lines: tuple[LogLine, ...]
    tracebacks: tuple[Traceback, ...]
    set_up: tuple[LogLine, ...]
    left_out: dict[str, int]

    def of(self, *whats: str) -> list[LogLine]:
        """The lines that say one of these."""
        return [one for one in self.lines if one.what in whats]


@lru_cache(maxsize=1)
def read_log(text: str) -> Log:
    """Everything that a text says of memory; what was recognised is not read once more."""
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
    plain = text if text.isascii() else text.encode("ascii", "replace").decode("ascii")
    distinct = _distinct(plain)
    for row in rows():
        known = row.words.isascii()
        if known and distinct is not None and row.words.translate(ZEROS) not in distinct:
            continue
        spans = ((0, len(text)),) if row.anywhere else ends
        hits, skipped = _hits(plain if known else text, row.words, spans)
        if skipped:
            left_out[row.what] = left_out.get(row.what, 0) + skipped
        for place, stop in pairwise((*hits, len(text))):
            line = _line(text, row, place, stop)
            if line is not None:
                found.append((place, line))
    found += _csv_lines(text[-END:], max(len(text) - END, 0))
    found.sort(key=lambda one: one[0])
    lines = tuple(_once(_numbered(text, found)))
    stated = tuple(_stated(text, lines))
    stacks = tracebacks(text[-END:])
    return Log(lines=lines, tracebacks=stacks, set_up=stated, left_out=left_out)


def is_printed(text: str) -> bool:
    """Whether a text is what a program printed: a stack, a line that can tell a cause, or a size.

    A command or a configuration may have words of other lines.
    """
    found = read_log(text)
    sizes = (name.endswith("_bytes") for line in found.lines for name in line.figures)
    return (
        bool(found.tracebacks) or any(one.what in _telling() for one in found.lines) or any(sizes)
    )


@cache
def _telling() -> frozenset[str]:
    """What the rows read that can tell a cause."""
    return frozenset(row.what for row in rows() if row.anywhere)


def _distinct(plain: str) -> str | None:
    """The lines of a text, once for all that differ in digits alone; None where they are as many.

    Words that it does not have stand nowhere in the text: a long log says the same again and again.
    """
    if len(plain) <= BEGIN + END or plain.count("\n") > MOST_LINES:
        return None
    for part in (plain[-BEGIN:], plain):  # a part tells whether it is worth it
        lines = set(part.translate(ZEROS).split("\n"))
        if sum(map(len, lines)) * FEW > len(part):
            return None
    return "\n".join(lines)


def _hits(text: str, words: str, spans: Spans) -> tuple[list[int], int]:
    """The places of a row's words, and how many between them are left out."""
    half = MOST_HITS // 2
    count = sum(text.count(words, start, end) for start, end in spans)
    if count <= MOST_HITS:
        return list(_places(text, words, spans, count)), 0
    first = list(_places(text, words, spans, half))
    last: list[int] = []
    for start, end in reversed(spans):
        at = text.rfind(words, start, end)
        while at >= 0 and len(last) < half:
            last.append(at)
            at = text.rfind(words, start, at)
    return [*first, *reversed(last)], count - MOST_HITS


def _places(text: str, words: str, spans: Spans, most: int) -> Iterator[int]:
    """The first places of words."""
    for start, end in spans:
        at = text.find(words, start, end) if most else -1
        while at >= 0 and most:
            most -= 1
            yield at
            at = text.find(words, at + len(words), end) if most else -1


def _line(text: str, row: LineRow, place: int, stop: int) -> LogLine | None:
    """The line at a place, where a row's pattern is in it.

    stop: the row's next place; what a line reaches ends in front of that one's line
    """
    start = text.rfind("\n", max(place - LONG, 0), place) + 1 or max(place - LONG, 0)
    end = text.find("\n", place, place + LONG)
    end = min(place + LONG, len(text)) if end < 0 else end
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
    words = [name for name, each in figures.items() if isinstance(each, str)]
    if words:  # a word alone has lost the name that tells a secret
        said = hide_command(text[max(start, match.start() - SHOWN) : min(end, match.end() + SHOWN)])
        figures |= {name: NOT_KEPT for name in words if str(figures[name]) not in said}
    shown = hide_long(" ".join(text[start:end].split()), SHOWN)
    return LogLine(line=0, what=row.what, tool=row.tool, figures=figures, text=shown)


def _csv_lines(text: str, before: int) -> Iterator[tuple[int, LogLine]]:
    """The rows of nvidia-smi's CSV, by the names in the line above them."""
    for head in CSV_HEAD.finditer(text):
        columns = [one.strip().split(" [") for one in head[0].split(",")]
        place = head.end() + 1
        for row in text[place : place + LONG * 20].split("\n"):
            values = [one.strip() for one in row.split(",")]
            if len(values) != len(columns):
                break
            figures: dict[str, Figure | str] = {}
            for (name, *unit), value in zip(columns, values, strict=True):
                amount, _, own = value.partition(" ")
                if name in CSV_SIZES and amount.isdigit():
                    printed = own or (unit[0].rstrip("]") if unit else "MiB")
                    figures[f"{CSV_SIZES[name]}_bytes"] = size(amount, printed)
                elif name in CSV_WORDS:
                    figures[CSV_WORDS[name]] = value
            what = "card_process" if "pid" in figures else "card_used"
            if any(name.endswith("_bytes") for name in figures):
                yield (
                    before + place,
                    LogLine(
                        line=0, what=what, tool="nvidia", figures=figures, text=hide_command(row)
                    ),
                )
            place += len(row) + 1


def _numbered(text: str, found: list[tuple[int, LogLine]]) -> Iterator[LogLine]:
    """The lines with their numbers."""
    number, counted = 1, 0
    for place, line in found:
        number += text.count("\n", counted, place)
        counted = place
        yield replace(line, line=number)


def _stated(text: str, lines: Iterable[LogLine]) -> Iterator[LogLine]:
    """The set-up's numbers of each line, but for those that a row has read."""
    known: dict[int, set[float | None]] = {}
    for one in lines:
        known.setdefault(one.line, set()).update(map(_value, one.figures.values()))
    found = []
    for place, figures in set_up(text):
        end = text.find("\n", place)
        words = " ".join(text[place : end if end >= 0 else len(text)][:LONG].split())
        shown = hide_long(words, SHOWN)
        line = LogLine(line=0, what=SET_UP, tool="text", figures={**figures}, text=shown)
        found.append((place, line))
    for one in _numbered(text, found):
        read = known.get(one.line, ())
        rest = {name: each for name, each in one.figures.items() if _value(each) not in read}
        if rest:
            yield replace(one, figures=rest)


def _value(figure: Figure | str) -> float | None:
    return float(figure.value) if isinstance(figure, Figure) else None


def _once(lines: Iterable[LogLine]) -> Iterator[LogLine]:
    """Each line once for what it says, though two rows may know a wording of it."""
    seen: dict[tuple[int, str], LogLine] = {}
    every, vague = list(lines), {row.what for row in rows() if row.alone}
    known = {line.line for line in every if line.what in _telling()}
    for line in every:
        if line.what in vague and line.line in known:
            continue
        key = (line.line, line.what)
        if key not in seen or len(line.figures) > len(seen[key].figures):
            seen[key] = line
    yield from seen.values()
