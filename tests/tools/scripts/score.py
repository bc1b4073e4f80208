"""Scores `check` on public training scripts against the labels of `labels.jsonl`.

    python -m tests.tools.scripts.score FOLDER

FOLDER has the scripts by their ids (`01.py`), which are not part of this repository. A labelled
line that touches memory is accounted for where a key or a limit of the reading names its number.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct

from gpu_mem_calculator.runfile.text.errors import InputError

LABELS = Path(__file__).with_name("labels.jsonl")
CARD = "a100-80gb"
PLACE = re.compile(r"[\w.-]+\.py:(\d+) ")


class Score(Struct, kw_only=True):
    """One script: its verdict, and the labelled lines that nothing accounts for."""

    id: str
    verdict: str
    missed: list[tuple[int, str, str]]
    freed: list[tuple[int, str, str]]
    lines: int
    why: list[str]


def labels() -> Iterator[dict[str, Any]]:
    """The labelled scripts."""
    for line in LABELS.read_text(encoding="utf-8").splitlines():
        yield json.loads(line)


def score(row: dict[str, Any], folder: Path) -> Score:
    """Read one script, and compare every labelled line."""
    words = shlex.split(row.get("command") or f"python {row['id']}.py")
    verdict, keys, why = answer(words, folder)
    places: dict[int, set[str]] = {}
    for key, effect in keys.items():
        found = PLACE.match(key)
        if found:
            places.setdefault(int(found[1]), set()).add(effect)
    touched = [one for one in row["lines"] if one["touches_memory"]]
    named = [(one["line"], one["what"], str(one["value"])) for one in touched]
    missed = [one for one in named if one[0] not in places]
    freed = [one for one in named if places.get(one[0]) == {"free"}]
    return Score(
        id=row["id"], verdict=verdict, missed=missed, freed=freed, lines=len(named), why=why
    )


def answer(words: list[str], folder: Path) -> tuple[str, dict[str, str], list[str]]:
    """The verdict of `check` on a named card, the keys it accounted for, and its limits."""
    from gpu_mem_calculator.estimates.calculator import full_estimate
    from tests.tools.reading_of import readings_of

    try:
        reading = readings_of(words, folder)[0]
    except InputError as error:
        return "not read", {}, list(error.problems)
    keys = dict(reading.keys) | {one.key: "refused" for one in reading.limits}
    why = [str(one) for one in reading.limits]
    if reading.problems:
        return "bad input", keys, reading.problems
    hardware = {**(reading.run.get("hardware") or {}), "gpu": CARD}
    try:
        result = full_estimate({**reading.run_file, "hardware": hardware}).result
    except InputError as error:
        return "cannot_tell", keys, [*error.problems, *why]
    return result.verdict, keys, why


def main(folder: Path) -> None:
    """Print the score of every script, and of all of them."""
    scores = [score(row, folder) for row in labels()]
    for one in scores:
        print(f"{one.id} {one.verdict}: {one.lines - len(one.missed)} of {one.lines} lines")
        for line in (*(f"missed {m}" for m in one.missed), *(f"free {m}" for m in one.freed)):
            print("    ", line)
        for sentence in one.why:
            print("     -", sentence)
    lines, missed = sum(one.lines for one in scores), sum(len(one.missed) for one in scores)
    whole = sum(not one.missed for one in scores)
    print(f"{lines - missed} of {lines} lines, all lines of {whole} of {len(scores)} scripts")
    print(dict(Counter(one.verdict for one in scores)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
