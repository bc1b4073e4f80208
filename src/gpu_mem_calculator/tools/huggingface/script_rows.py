"""The lines of a script as keys and limits of a reading."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..reading.reading import Could, Effect, Limit, Reading
from ..script.origins import declared_lines, origins
from ..script.record import HONOURED, LIMIT, UNCLEAR, ScriptRecord
from ..script.rows import Row

LINE = re.compile(r":(\d+) ")
MOST_NAMES = 6
CONDITION = "the text does not show whether it is so; its lines are taken as done"


def listed(value: Any) -> Any:
    """A tuple of a script as a file has it."""
    return list(value) if isinstance(value, tuple) else value


def account_lines(found: ScriptRecord, reading: Reading) -> None:
    """Every call and assignment that was seen; conditions that are not known."""
    for one in found.lines:
        key = name(reading, one.line, one.what)
        if one.effect in (LIMIT, UNCLEAR):
            limited(reading, one.line, one.what, one.why, adds=one.adds, saves=one.saves)
        else:
            reading.keys.setdefault(key, "memory" if one.effect == HONOURED else "free")
        for line in one.more:
            reading.keys.setdefault(name(reading, line, one.what), reading.keys[key])
    for line, condition in found.conditions.items():
        limited(reading, line, f"if {condition}", CONDITION)
    if found.is_cut:
        limited(reading, 0, "the script", "it is too long to be followed to its end")
    reading.assumed += list(dict.fromkeys(found.assumed))


def name(reading: Reading, line: int, what: str) -> str:
    """A line as sentences name it: `train.py:12 model.half()`."""
    place = f":{line}" if line else ""
    return f"{reading.script}{place} {what}"


def limited(
    reading: Reading,
    line: int,
    what: str,
    why: str,
    *,
    adds: bool | str | int = True,
    saves: bool | str | int = True,
) -> None:
    """Something that is not modelled, or not understood.

    - adds, saves: whether it can, or what bounds it: bytes, or a part of the estimate
    """
    key = name(reading, line, what)
    reading.keys[key] = "refused"
    if any(one.key == key for one in reading.limits):
        return
    could: Could = "either" if adds and saves else "more" if adds else "less"
    more, less = (None if bound in (True, False) else bound for bound in (adds, saves))
    reading.limits.append(Limit(key=key, why=why, could=could, adds=more, saves=less))


def computed(
    reading: Reading, line: int, what: str, *, adds: bool | str = True, saves: bool | str = True
) -> None:
    """An argument whose value only a run of the script would show; bounds as in `limited`."""
    why = "the script computes it when it runs, so the default is taken"
    limited(reading, line, what, why, adds=adds, saves=saves)


def known_row(reading: Reading, known: Row | None, line: int, what: str) -> bool:
    """Something that the table of scripts has, as its row says; False where it has none."""
    if known is None:
        return False
    if known.effect == "free":
        freed(reading, line, what)
    else:
        limited(reading, line, what, known.why, adds=known.adds, saves=known.saves)
    return True


def honoured(reading: Reading, line: int, what: str) -> None:
    """Something that changes the run that is estimated."""
    reading.keys.setdefault(name(reading, line, what), "memory")


def freed(reading: Reading, line: int, what: str) -> None:
    """Something without effect on memory."""
    reading.keys.setdefault(name(reading, line, what), "free")


def account_origins(found: ScriptRecord, reading: Reading) -> None:
    """Lines that set the names which accounted lines use."""
    effects: dict[int, Effect] = {}
    for key, effect in reading.keys.items():
        place = LINE.match(key.removeprefix(reading.script))
        if place is not None and key.startswith(reading.script):
            line = int(place[1])
            if effects.get(line) != "memory":
                effects[line] = effect
    for line, (use, word) in origins(found.tree, dict.fromkeys(effects, "")).items():
        effects.setdefault(line, effects.get(use, "memory"))
        reading.keys.setdefault(name(reading, line, f"{word}, used in line {use}"), effects[line])
    _account_options(found, reading, effects)


def _account_options(
    found: ScriptRecord, reading: Reading, accounted: Mapping[int, Effect]
) -> None:
    """Options that the script declares and no accounted line uses: they stay on the host, unless
    they are handed to code that is not at hand.
    """
    handed = found.facts.get("handed on")
    names: list[str] = []
    for word, lines in declared_lines(found.tree).items():
        if word in found.options and not lines & accounted.keys():
            for line in lines:
                effect: Effect = "refused" if handed else "free"
                reading.keys.setdefault(name(reading, line, word), effect)
            names.append(word)
    if handed and names:
        shown = ", ".join(names[:MOST_NAMES]) + (" ..." if len(names) > MOST_NAMES else "")
        what = f"{handed.text}: {shown}"
        limited(reading, handed.line, what, "options that are handed to code that is not at hand")
