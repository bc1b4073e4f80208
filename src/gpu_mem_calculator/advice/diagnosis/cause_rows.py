"""A cause as a row of causes.toml, with its words filled in."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cache
from string import Formatter
from typing import Any

from ...catalog.kept import read_table
from ...tools.logs.figure import Figure
from ...tools.logs.read import LogLine
from .crash import Crash, told
from .diagnosis import Cause
from .programs import for_programs, is_done
from .sizes import Explained

KEYS = {
    "sentence",
    "remedies",
    "for",
    "host",
    "without",
    "of_vendor",
    "ask",
    "phase",
    "certain",
    "likely",
}  # of a row; others are texts
OTHERS = "others"  # of a table by kinds of lines: the kinds that it does not name
SHARE = "0.8"  # the share of the card to ask for where other processes are on it


@cache
def rows() -> Mapping[str, Mapping[str, Any]]:
    """The rows of causes.toml."""
    table: Mapping[str, Any] = read_table(os.path.join(os.path.dirname(__file__), "causes.toml"))
    return table


def made_cause(
    crash: Crash, name: str, certainty: str, *, phase: str = "", evidence: str = "", **words: str
) -> Cause:
    """A cause of a row; `words` fill in its sentence and its remedies, which are those that the
    program can follow and does not follow yet.
    """
    row, filled = rows()[name], {"figures": "", "size": "", **words}
    return Cause(
        id=name,
        sentence=row["sentence"].format_map(filled),
        certainty=certainty,
        phase=phase or row.get("phase", ""),
        evidence=(evidence,) if evidence else (),
        advice=tuple(
            one.format_map(filled)
            for one in for_programs(row, crash.programs)
            if ("{share}" not in one or filled["share"])  # none is large enough
            and not is_done(one, crash.estimate)
        ),
    )


def line_cause(crash: Crash, name: str, certainty: str, line: LogLine, **words: str) -> Cause:
    """A cause that a line says; its figures fill in the row's own texts."""
    said = {
        key.removesuffix("_bytes"): told(one.value)
        if key.endswith("_bytes") and isinstance(one, Figure)
        else f"{one.value:,}"
        if isinstance(one, Figure)
        else one
        for key, one in line.figures.items()
    }
    texts = {key: each for key, each in rows()[name].items() if key not in KEYS}
    of_line = {
        key: _filled(
            each.get(line.what, each.get(OTHERS, ())) if isinstance(each, Mapping) else each, said
        )
        for key, each in texts.items()
    }
    return made_cause(crash, name, certainty, evidence=line.text, **{**of_line, **words})


def _filled(texts: Sequence[str], said: Mapping[str, str]) -> str:
    """The first text for which there is all that it names."""
    for text in texts:
        if all(name in said for _, name, *_ in Formatter().parse(text) if name):
            return text.format_map(said)
    return ""


def size_words(crash: Crash, best: Explained | None) -> str:
    """The size that was asked for, and what explains it."""
    if crash.tried is None:
        return ""
    words = f": {told(crash.tried.value)} was asked for"
    if best is None:
        return words + _of_model(crash)
    about = "is" if best.exact else "would be"
    return f"{words}, which {about} {best.formula} ({best.tensor})"


def _of_model(crash: Crash) -> str:
    """What of the model that the text names is as large, and how many explanations there are."""
    model, found = crash.of_model
    if not found:
        return ""
    more = f"; {len(found)} explanations of {model} fit" if len(found) > 1 else f" of {model}"
    return f", which could be {found[0].formula} ({found[0].tensor}){more}"
