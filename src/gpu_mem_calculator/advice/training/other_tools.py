"""What a run of adapters needs when other tools run it with the same settings.

Each tool's file is written as `--export` writes it, and read as `check` reads it, so that what the
tool does by itself counts: its loss, the dtype of its adapters, how it loads the base.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from ...estimates.calculator import Estimate, full_estimate
from ...estimates.verdict_words import total_bytes
from ...runfile.text.errors import InputError
from ...runfile.text.text_data import parse_text
from ...tools.read import read
from ...tools.reading.named_files import NamedFiles
from ...tools.reading.tools import read_data
from ...tools.writing.writers import WRITERS, find_format, write_run

FILENAME = "run.json"  # each tool reads JSON as it reads YAML, and it takes less to write and read


class OtherTool(Struct, frozen=True):
    """What a tool needs for the same settings.

    - `total_bytes`: what the card must have, the margin included
    - `differs`: keys that it sets to other values by itself, a sentence each
    """

    title: str
    total_bytes: int
    differs: tuple[str, ...]


def other_tools(estimate: Estimate) -> Iterator[OtherTool]:
    """The tools that can run an estimate's settings; one that refuses them, or of whose file
    something is not modelled, is left out.
    """
    file = read(estimate.result.run).file
    for name in sorted(filter(_adapters, WRITERS), key=_adapters):
        try:
            written = write_run(name, file, estimate.resolved, output=FILENAME)
            run = _read_back(written.text, written.beside)
            if run is None:
                continue
            result = full_estimate({**run, "hardware": estimate.result.run["hardware"]}).result
        except InputError:
            continue
        yield OtherTool(find_format(name).title, total_bytes(result), written.unsaid)


def _adapters(name: str) -> int:
    return WRITERS[name].adapters


def _read_back(text: str, beside: Mapping[str, str]) -> dict[str, Any] | None:
    """The run that a written file means; None where the tool refuses it or it has limits."""
    reading = read_data(parse_text(text, ".json", "the file"), NamedFiles(None, beside))
    if reading is None or reading.problems or reading.limits:
        return None
    return reading.run
