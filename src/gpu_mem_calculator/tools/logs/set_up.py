"""Numbers of the set-up that stand around what programs printed: options, settings, tables, prose.

A number is read where the text says what it is: by the name that it is given (`--max-model-len
8192`, `peak=68.03 GiB`, a table's head), or by the noun beside it (`4 x A100 80GB`, `at step 5`).
That name is the figure's name; a number without one is not read. The forms are in set_up.toml.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import chain, count
from typing import Any

from msgspec import Struct

from ...catalog.kept import read_table
from .figure import Figure, number, size
from .in_english import in_english

BEGIN, END = 100_000, 50_000  # characters at the begin and the end of a text that are read
LONGEST, MOST = 2_000, 2_000  # characters of a line; lines
WIDE = 80  # characters on both sides of a size in which its noun stands
NUMBER = r"-?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d[\d_]*)(?:\.\d+)?"
UNIT = r"(?:[kKMGT]i?[Bb]?(?<!Ti)|[bB]ytes)(?![A-Za-z0-9])"
VALUE = rf"(?P<value>{NUMBER})(?![\d.]*\.\w)(?![\d,_]*%)(?:\s?(?P<unit>{UNIT})|(?![A-Za-z_%]))"
NAME = (  # a word of it, and it is no file's name
    r"(?P<name>(?=[\w.-]{1,60}(?![\w.-]))(?:[A-Za-z_][\w.-]*)?(?i:{NAMES})[\w.-]*"
    r"(?<!\.py)(?<!\.go)(?<!\.cc)(?<!\.cu)(?<!\.h)(?<!\.cpp)|{SHORT})"
)
SIZED = rf"(?<![\w.,])(?P<value>{NUMBER})\s?(?P<unit>(?!k\b|K\b){UNIT})"
PAIR = (  # two sizes of which one alone may have the unit
    rf"(?<![\w.,])(?P<value>{NUMBER})\s?(?P<unit>{UNIT})?(?: [a-z]+)?\s?"
    r"(?:/|-|~| of | out of | to | and )\s?"
    rf"(?P<to>{NUMBER})(?![.\w]*/)\s?(?P<unit_to>{UNIT})?"
)
WORTHS = {"k": 10**3, "K": 10**3, "B": 10**9, "b": 10**9}  # of counts; of parameters
# Of what is named parameters: "G" is not among them, as their bytes are written with it, too.
MANY, OF_PARAMETERS = {**WORTHS, "M": 10**6, "T": 10**12}, re.compile(r"param(eter)?s?$")
WORDS = {"one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8}


class Forms(Struct, frozen=True):
    """The compiled forms with their names, those of sizes, and what a size can be of."""

    named: tuple[tuple[re.Pattern[str], str], ...]
    sizes: tuple[re.Pattern[str], ...]
    noun: re.Pattern[str]
    cell: re.Pattern[str]


def table() -> Mapping[str, Any]:
    """set_up.toml."""
    path = os.path.join(os.path.dirname(__file__), "set_up.toml")
    found: Mapping[str, Any] = read_table(path)
    return found


@cache
def forms() -> Forms:
    """The forms of set_up.toml."""
    words = table()["words"]
    made = {"NAME": NAME, "VALUE": VALUE, "UNIT": UNIT, "NUMBER": NUMBER, **words}

    def filled(pattern: str) -> str:
        for key, each in made.items():
            pattern = pattern.replace(f"{{{key}}}", each)
        return pattern

    noun = rf"(?<![A-Za-z])(?:{words['OF']})(?![A-Za-z])|{words['CARDS']}"
    return Forms(
        named=tuple(
            (re.compile(filled(filled(row["pattern"]))), row.get("name", ""))
            for row in table()["form"]
        ),
        sizes=(re.compile(PAIR), re.compile(SIZED)),
        noun=re.compile(noun, re.IGNORECASE),
        cell=re.compile(rf"^\W*{VALUE}"),
    )


def set_up(text: str) -> Iterator[tuple[int, dict[str, Figure]]]:
    """The place of each line that has such numbers, and the numbers by their names."""
    spans = [(0, len(text))]
    if len(text) > BEGIN + END:
        spans = [(0, BEGIN), (len(text) - END, len(text))]
    told = 0
    for start, end in spans:
        heads: list[str] = []
        place = start
        for line in text[start:end].split("\n"):
            short = line[:LONGEST]
            in_table = short.lstrip().startswith("|")
            heads = (heads or _cells(short)) if in_table else []
            found = _Numbers(in_english(short)).read(heads) if any(map(str.isdigit, short)) else {}
            if found and told < MOST:
                told += 1
                yield place, found
            place += len(line) + 1


def _cells(line: str) -> list[str]:
    return [one.strip(" `*") for one in line.strip().strip("|").split("|")]


class _Numbers:
    """The numbers of a line, each of which is taken once."""

    def __init__(self, line: str) -> None:
        self.line = line
        self.found: dict[str, Figure] = {}
        self.taken: list[tuple[int, int]] = []

    def read(self, heads: list[str]) -> dict[str, Figure]:
        """By the forms, by the nouns beside sizes, by the heads of a table."""
        for form, own in forms().named:
            for one in form.finditer(self.line):
                self._take_form(one, own)
        for form in forms().sizes:
            for one in form.finditer(self.line):
                self._take_size(one)
        for head, cell in zip(heads, _cells(self.line), strict=False):
            one_cell = forms().cell.match(cell)
            if one_cell and head:
                start = self.line.find(cell) + one_cell.start("value")
                self._take(head, one_cell["value"], one_cell["unit"] or "", start)
        return self.found

    def _take_form(self, one: re.Match[str], own: str) -> None:
        given = one.groupdict()
        name = own or given.get("name") or ""
        if given.get("total"):
            more = name if not own else "of"
            self._take(more, given["total"], "", one.start("total"))
        self._take(name, given["value"], given.get("unit") or "", one.start("value"))
        for rest in re.finditer(r"\d+", given.get("rest") or ""):
            self._take(name, rest[0], "", one.start("rest") + rest.start())

    def _take_size(self, one: re.Match[str]) -> None:
        given = one.groupdict()
        unit = given["unit"] or given.get("unit_to") or ""
        noun = self._noun(*one.span()) if unit else ""
        if noun:
            self._take(noun, given["value"], given["unit"] or unit, one.start("value"))
            if given.get("to"):
                self._take(noun, given["to"], given["unit_to"] or unit, one.start("to"))

    def _noun(self, start: int, end: int) -> str:
        """The noun next to a size; "" where none stands near."""
        near = max(start - WIDE, 0)
        nouns = [
            (max(near + one.start() - end, start - near - one.end(), 0), one[0])
            for one in forms().noun.finditer(self.line[near : end + WIDE])
        ]
        return min(nouns)[1] if nouns else ""

    def _take(self, name: str, value: str, unit: str, start: int) -> None:
        stop = start + len(value)
        if any(first < stop and start < last for first, last in self.taken):
            return
        self.taken.append((start, stop))
        key = re.sub(r"\W+", "_", name).strip("_").lower() or "number"
        worths = MANY if OF_PARAMETERS.search(key) else WORTHS
        end = "_bytes" if unit and unit not in worths else ""
        keys = chain((key,), (f"{key}_{again}" for again in count(2)))
        free = next(one + end for one in keys if one + end not in self.found)
        self.found[free] = _figure(value, unit, worths)


def _figure(value: str, unit: str, worths: Mapping[str, int]) -> Figure:
    if unit and unit not in worths:
        return size(value, unit)
    plain = Figure(WORDS[value.lower()]) if value.isalpha() else number(value)
    worth = worths[unit] if unit else 1
    return Figure(round(plain.value * worth), plain.step * worth) if unit else plain
