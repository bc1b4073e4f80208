"""The run that a written text means, by the reader of its format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...runfile.text.text_data import parse_text
from ..reading.named_files import NamedFiles
from ..reading.tools import read_command, read_data
from ..shell.read import main_command, read_script

SCRIPT = "script"  # a text that a shell reads; others are files of a tool


def read_back(
    kind: str, text: str, beside: Mapping[str, str] | None = None
) -> dict[str, Any] | None:
    """The sections of a run file that a text means; None where its tool has no reader.

    beside: the files that it names; no others can be read
    """
    files = NamedFiles(None, beside or {})
    try:
        if kind == SCRIPT:
            return read_command(main_command(read_script(text, files))).run
        reading = read_data(parse_text(text, ".yaml", "the file"), files)
    except ModuleNotFoundError:
        return None
    return None if reading is None else reading.run
