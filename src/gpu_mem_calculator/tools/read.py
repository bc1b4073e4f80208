"""The door: what people write becomes a run file, the program of a tool included."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ..runfile.config import RunFile
from ..runfile.program import Program, Translation
from ..runfile.read import parse

if TYPE_CHECKING:
    from pathlib import Path


def read(
    source: str | Path | Mapping[str, Any] | RunFile,
    more_problems: Callable[[Any], Iterable[str]] = lambda _: (),
) -> RunFile:
    """A checked run file from a path, a dict, or objects; raises all problems at once.

    more_problems: what is wrong with the data besides its form, asked for if the form is wrong
    """
    return parse(source, more_problems, _translate)


def _translate(data: Mapping[str, Any]) -> tuple[dict[str, Any], Program, Translation]:
    from .program_section import with_program  # it knows the tools, which most runs do not load

    return with_program(data)
