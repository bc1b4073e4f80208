"""The run that a written text means, by the reader of its format."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from typing import Any

from ...core.text_data import parse_text
from ..launchers.launch import read_launch
from ..reading.named_files import NamedFiles
from ..reading.tools import read_command, read_data

NO_FILES = NamedFiles(None)


def read_back(kind: str, text: str) -> dict[str, Any] | None:
    """The sections of a run file that a text means; None where its tool has no reader."""
    try:
        return READERS[kind](text)
    except ModuleNotFoundError:
        return None


def _file(text: str) -> dict[str, Any] | None:
    reading = read_data(parse_text(text, ".yaml", "the file"), NO_FILES)
    return None if reading is None else reading.run


def _command(text: str) -> dict[str, Any] | None:
    words = shlex.split(text.replace("\\\n", " "), comments=True)
    return read_command(read_launch(words, NO_FILES)).run


READERS: Mapping[str, Callable[[str], dict[str, Any] | None]] = {"file": _file, "command": _command}
