"""A run as a file of another tool."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct

COMMENT = "# "


class Written(Struct, frozen=True, kw_only=True):
    """A run as a file of another tool.

    - `text`: what the file contains, comments included
    - `filename`: its usual name; `start`: the command that uses it
    - `unsaid`: one sentence for each thing of the run that the file cannot say
    - `notes`: other sentences for the user, such as what the program itself must do
    - `commented`: whether start, notes and what is unsaid are comments in the text
    - `beside`: the texts of other files that it names, by their names
    """

    text: str
    filename: str = ""
    start: str = ""
    unsaid: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    commented: bool = False
    beside: Mapping[str, str] = {}


def comment_lines(sentences: Iterable[str]) -> str:
    """Sentences as comments, one on each line; an empty text where there are none."""
    return "".join(f"{COMMENT}{line}\n" for one in sentences for line in one.splitlines())
