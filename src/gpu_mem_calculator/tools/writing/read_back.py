"""The run that a written text means, by the reader of its format."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from ...runfile.text.text_data import parse_text
from ..reading.named_files import NamedFiles
from ..reading.tools import read_command, read_data
from ..shell.read import main_command, read_script

Sections = dict[str, Any]


class WrittenFiles(NamedFiles, frozen=True):
    """Files that were written together, by their names; no others can be read."""

    texts: Mapping[str, str] = {}

    def exists(self, name: str) -> bool:
        """Whether a file of this name was written."""
        return name in self.texts

    def text(self, name: str, option: str = "") -> str:
        """The text of a file."""
        return self.texts[name] if name in self.texts else NamedFiles.text(self, name, option)

    def data(self, name: str, option: str = "") -> Any:
        """The data of a file."""
        if name not in self.texts:
            return NamedFiles.data(self, name, option)
        return parse_text(self.texts[name], os.path.splitext(name)[1], name)


def read_back(kind: str, text: str, beside: Mapping[str, str] | None = None) -> Sections | None:
    """The sections of a run file that a text means; None where its tool has no reader.

    beside: the files that it names
    """
    try:
        return READERS[kind](text, WrittenFiles(None, beside or {}))
    except ModuleNotFoundError:
        return None


def _file(text: str, files: NamedFiles) -> Sections | None:
    reading = read_data(parse_text(text, ".yaml", "the file"), files)
    return None if reading is None else reading.run


def _script(text: str, files: NamedFiles) -> Sections:
    return read_command(main_command(read_script(text, files, ()))).run


READERS: Mapping[str, Callable[[str, NamedFiles], Sections | None]] = {
    "file": _file,
    "script": _script,
}
