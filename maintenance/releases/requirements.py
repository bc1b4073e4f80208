"""Reads which releases of other packages a release allows."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from .source import Texts

# Where a release says it, the first that does: a wheel, a source archive, what setuptools wrote.
FILES = (
    re.compile(r"[^/]+\.dist-info/METADATA"),
    re.compile(r"PKG-INFO"),
    re.compile(r"[^/]+\.egg-info/requires\.txt"),
)
STATED = "Requires-Dist: "  # how a line of the first two begins
LINE = re.compile(r"([\w.-]+)(?:\[[^\]]*\])?\s*\(?([^;()]*)\)?\s*;?\s*(.*)")
OTHERS = re.compile(r"""==\s*.darwin|python_version\s*<""")  # of other systems and old Pythons


def requirements(files: Texts, packages: Sequence[str]) -> dict[str, str]:
    """The range of releases of each package, as the release writes it: `>=4.41.2,<=4.49.0`.

    That of an installation without extras wins over that of an extra.
    """
    for pattern in FILES:
        texts = [files.text(name) for name in sorted(files.names) if pattern.fullmatch(name)]
        found = list(_lines(texts[0], "requires" not in pattern.pattern)) if texts else []
        if found:
            found.sort(key=lambda one: "extra" in one[2])
            ranges = {name: text for name, text, _ in reversed(found)}
            return {name: ranges[name] for name in packages if ranges.get(name)}
    return {}


def _lines(text: str, stated: bool) -> Iterator[tuple[str, str, str]]:
    """The name, the range and the condition of each requirement."""
    extra = ""
    for line in text.splitlines():
        if not stated and line.startswith("["):  # a section of requires.txt
            extra = f"extra {line}"
        elif line.startswith(STATED) == stated:
            found = LINE.fullmatch(line.removeprefix(STATED))
            condition = found and (found[3] or extra)
            if found and not OTHERS.search(condition or ""):
                yield found[1].lower(), found[2].replace(" ", ""), condition or ""
