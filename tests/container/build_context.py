"""What `docker build` is sent of a folder: everything that .dockerignore leaves in."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

Rule = tuple[re.Pattern[str], bool]  # which paths, and whether they stay out


def rules(text: str) -> list[Rule]:
    """The lines of a .dockerignore; the last one that matches a path decides."""
    found = []
    for line in text.splitlines():
        pattern = line.strip()
        if pattern and not pattern.startswith("#"):
            left_out = not pattern.startswith("!")
            found.append((_expression(pattern.lstrip("!").strip("/")), left_out))
    return found


def left_out(path: str, known: list[Rule]) -> bool:
    """Whether a path, from the folder down and with /, is not sent."""
    out = False
    for expression, outcome in known:
        if expression.fullmatch(path):
            out = outcome
    return out


def sent(folder: Path, known: list[Rule], source: str = ".") -> Iterator[str]:
    """Each file at or below a source that is sent, as a path from the folder down."""
    if (folder / source).is_file():
        found = [source]
    else:
        walked = os.walk(folder / source)
        found = [os.path.join(at, name) for at, _, files in walked for name in files]
    for path in sorted(Path(folder, each).relative_to(folder).as_posix() for each in found):
        if not left_out(path, known):
            yield path


def _expression(pattern: str) -> re.Pattern[str]:
    """A pattern as Docker reads it: `*` and `?` stay in one folder, `**` does not.

    What matches a folder matches all that is in it.
    """
    parts = []
    for piece in re.findall(r"\*\*/|\*\*|\*|\?|[^*?]+", pattern):
        known = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
        parts.append(known.get(piece, re.escape(piece)))
    return re.compile("".join(parts) + "(?:/.*)?")
