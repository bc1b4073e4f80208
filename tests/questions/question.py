"""One question: a run file for Python or the service, or a command with the files it names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

RUN, COMMAND, REST = "run", "command", "rest"


class Question(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A question, as JSON shows it.

    - kind: `run` (a dict in Python), `command` (words of the command line) or `rest` (a body)
    - name: the row of the tally that it counts in
    - run: a run file; of a command, the one it names as run.json
    - words: of a command; the task of the service
    - files: other files that a command names, by path
    - replay: whether the allocator is replayed
    - more: also ask what takes longer, such as the same question by another door
    """

    kind: str
    name: str
    run: Mapping[str, Any] | None = None
    words: tuple[str, ...] = ()
    files: Mapping[str, str] = {}
    replay: bool = False
    more: bool = False


def as_text(question: Question) -> str:
    """The question as one line of JSON, to ask it again."""
    return msgspec.json.encode(question).decode()


def from_text(text: str) -> Question:
    """The question of a line."""
    return msgspec.json.decode(text, type=Question)
