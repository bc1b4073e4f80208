"""Where a run died, and for which tensor, by the frames of the stack that it printed."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from msgspec import Struct

from ...catalog.kept import read_table
from ...tools.logs.frames import Frame, Traceback

BACKWARD, FORWARD, OPTIMIZER_STEP = "backward", "forward", "optimizer step"
LOADING, STARTING, EVALUATION, SAVING = "loading", "start-up", "evaluation", "saving"
PROFILING, GRAPHS, SERVING = "profiling pass", "CUDA graphs", "serving"
CACHE, SYNC, RESUMING = "cache allocation", "weight sync", "resuming"
FORMS = ("file", "name", "code", "text")
DIES = (  # words for a death
    r"\b(?:OOMs?|OOMed|out.of.memory|OutOfMemory\w*|crash\w*|dies|died|fail(?:s|ed)?|kill(?:s|ed))\b"
)


class Place(Struct, frozen=True):
    """A phase and a tensor, "" where the stack does not say it; and the frame that says the tensor,
    else the innermost one.
    """

    phase: str = ""
    tensor: str = ""
    frame: Frame | None = None


def place(stack: Traceback | None) -> Place:
    """Where a stack ends."""
    if stack is None:
        return Place()
    inside = list(reversed(stack.frames))
    phase = next((row["phase"] for row in _rows("phase") if any(map(_is(row), inside))), "")
    if not phase:
        phase = _innermost(inside, "inner", "phase")[0]
    tensor, frame = _innermost(inside, "tensor", "tensor")
    if phase == BACKWARD and tensor.startswith("optimizer"):  # the loop is a closure of its step
        tensor, frame = "", None
    return Place(phase, tensor, frame or (inside[0] if inside and inside[0].file else None))


def phase_of_words(text: str) -> str:
    """The phase that the words of a text without a stack say."""
    return next((row["phase"] for row in _rows("words") if row["forms"]["text"].search(text)), "")


@cache
def said_rows() -> list[Mapping[str, Any]]:
    """The rows of said.toml, compiled."""
    table = read_table(os.path.join(os.path.dirname(__file__), "said.toml"))
    forms = ("all", "none")
    return [
        {**row, **{key: [_compiled(one) for one in row.get(key, ())] for key in forms}}
        for row in table["said"]
    ]


def _compiled(form: str) -> re.Pattern[str]:
    return re.compile(form.replace("{DIES}", DIES))


def _innermost(inside: list[Frame], kind: str, key: str) -> tuple[str, Frame | None]:
    """What the innermost frame says that a row of a kind knows."""
    for frame in inside:
        for row in _rows(kind):
            if _is(row)(frame):
                return row[key], frame
    return "", None


def _is(row: Mapping[str, Any]) -> Callable[[Frame], bool]:
    forms: Mapping[str, re.Pattern[str]] = row["forms"]
    return lambda frame: all(form.search(getattr(frame, key)) for key, form in forms.items())


@cache
def _rows(kind: str) -> list[Mapping[str, Any]]:
    table = read_table(os.path.join(os.path.dirname(__file__), "places.toml"))
    return [
        {**row, "forms": {key: _compiled(row[key]) for key in FORMS if key in row}}
        for row in table[kind]
    ]
