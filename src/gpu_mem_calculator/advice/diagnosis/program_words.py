"""A change of a program on transformers.Trainer as options of its command, tried by an estimate.

The options change the program's own arguments, and the estimate is of these: what a tool does
besides, such as how it loads an adapter's model, counts.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any

from ...catalog.kept import read_table
from ...estimates.calculator import full_estimate
from ...estimates.fit_verdict import FITS
from ...runfile.read import with_settings
from ...runfile.text.errors import InputError
from ...tools.read import Asked

HOLE, OTHERS = "{}", "others"
BESIDE = ("training.pytorch_alloc_conf", "hardware.")  # which no argument of a program says


def program_words(asked: Asked, settings: Iterable[str]) -> str:
    """The options with which the program fits; empty where its tool cannot say a setting, or the
    program then does not fit.
    """
    program = asked.run.get("program")
    if not isinstance(program, Mapping) or asked.reading is None:
        return ""
    tool = asked.reading.tool
    changed = {
        key: dict(value) if isinstance(value, Mapping) else value for key, value in program.items()
    }
    options: dict[str, str] = {}
    kept: list[str] = []
    for setting in settings:
        row, value = _row(setting)
        words = (
            None
            if row is None
            else row["words"].get(tool.partition(".")[0], row["words"].get(OTHERS))
        )
        if row is None or words is None or ("most" in row and int(value) > row["most"]):
            return ""
        for section, keys in row["program"].items():
            own = {key: _filled(one, value) for key, one in keys.items()}
            changed[section] = {**(changed.get(section) or {}), **own}
        for option, given in _pairs(words.replace(HOLE, value)):
            options.pop(option, None)
            options[option] = given
        if setting.startswith(BESIDE):
            kept.append(setting)
    run = with_settings({**asked.run, "program": changed}, kept)
    try:
        if full_estimate(run).result.verdict != FITS:
            return ""
    except InputError:
        return ""
    words = [" ".join(filter(None, (option, given))) for option, given in options.items()]
    return " ".join(sorted(words, key=lambda one: one.startswith("-")))


@cache
def word_rows() -> tuple[Mapping[str, Any], ...]:
    """The rows of program_words.toml."""
    table = read_table(os.path.join(os.path.dirname(__file__), "program_words.toml"))
    return tuple(table["word"])


def _row(setting: str) -> tuple[Mapping[str, Any] | None, str]:
    """The row of a setting, and the value that it has there."""
    key, _, value = setting.partition("=")
    for row in word_rows():
        if row["setting"] in (setting, f"{key}={HOLE}"):
            return row, value
    return None, ""


def _pairs(words: str) -> Iterator[tuple[str, str]]:
    """The options of words, each with its value as a shell takes it; variables of the environment
    have none.
    """
    option = ""
    for word in (*shlex.split(words), "-"):
        if option and not word.startswith("-"):
            yield option, shlex.quote(word)
            option = ""
            continue
        if option:
            yield option, ""
        option = word if word.startswith("-") else ""
        if not option:
            yield word, ""


def _filled(value: Any, given: str) -> Any:
    """A value of the program, with the number that is given."""
    return int(given) if value == HOLE else value
