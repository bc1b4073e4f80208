"""The run that a written text means, by the reader of its format."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...core.text_data import parse_text
from ..reading.named_files import NamedFiles
from ..reading.tools import read_command, read_data
from ..shell.read import main_command, read_script

NO_FILES = NamedFiles(None)
Sections = dict[str, Any]


def read_back(kind: str, text: str) -> Sections | None:
    """The sections of a run file that a text means; None where its tool has no reader."""
    try:
        return READERS[kind](text)
    except ModuleNotFoundError:
        return None


def _file(text: str) -> Sections | None:
    reading = read_data(parse_text(text, ".yaml", "the file"), NO_FILES)
    return None if reading is None else reading.run


def _script(text: str) -> Sections:
    return read_command(main_command(read_script(text, NO_FILES, ()))).run


READERS: Mapping[str, Callable[[str], Sections | None]] = {"file": _file, "script": _script}
