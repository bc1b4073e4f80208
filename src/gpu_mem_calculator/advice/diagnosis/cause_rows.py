"""A cause as a row of causes.toml, with its words filled in."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from typing import Any

from ...catalog.kept import read_table
from ...tools.logs.figure import Figure
from ...tools.logs.read import LogLine
from .crash import Crash, told
from .diagnosis import Cause
from .sizes import Explained

SHARE = "0.8"  # the share of the card to ask for where other processes are on it


@cache
def rows() -> Mapping[str, Mapping[str, Any]]:
    """The rows of causes.toml."""
    table: Mapping[str, Any] = read_table(os.path.join(os.path.dirname(__file__), "causes.toml"))
    return table


def made_cause(
    name: str, certainty: str, *, phase: str = "", evidence: str = "", **words: str
) -> Cause:
    """A cause of a row; `words` fill in its sentence and its remedies."""
    row, filled = rows()[name], {"figures": "", "size": "", **words}
    return Cause(
        id=name,
        sentence=row["sentence"].format_map(filled),
        certainty=certainty,
        phase=phase,
        evidence=(evidence,) if evidence else (),
        advice=tuple(one.format_map(filled) for one in row["remedies"]),
    )


def figures_of(line: LogLine, *names: str) -> list[int | float | None]:
    """The values of figures, None for those that are not there."""
    found = (line.figures.get(name) for name in names)
    return [one.value if isinstance(one, Figure) else None for one in found]


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
