"""Writes docs/frameworks.md: the frameworks whose source is modelled, and who cites it.

python -m maintenance.drift.page
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from gpu_mem_calculator.ledger.frameworks import FRAMEWORKS, Framework

from .citations import SOURCE, files, mentions

TARGET = Path(__file__).parents[2] / "docs" / "frameworks.md"
ABOVE = """# Frameworks and versions

Every formula that follows a framework cites its source code at a version. The table has, for each
framework:

- the newest version that was read,
- the day on which it was read, or, if that is not known, the day of the first citation,
- other versions that citations name,
- the packages that cite it.

A server newer than the version that was read is treated as that version.

| framework | read | on | also cited | cited in |
|---|---|---|---|---|
"""
BELOW = """
The table is `ledger/frameworks.py`. Defaults of `engine_version` are from it. A test fails if a
citation names a version that the table does not have. `make drift` compares the table with the
newest releases ([maintenance/drift](../maintenance/drift/README.md)).
`python -m maintenance.drift.page` writes this page.
"""


def cited_in() -> dict[Framework, set[str]]:
    """The packages that name a framework with a version; the table itself does not count."""
    packages: dict[Framework, set[str]] = defaultdict(set)
    for path in files():
        if path.name != "frameworks.py":
            package = path.parent.relative_to(SOURCE).as_posix()
            for _, row, version in mentions(path.read_text(encoding="utf-8")):
                if version:
                    packages[row].add(package)
    return packages


def line(row: Framework, packages: set[str]) -> str:
    """One row of the table."""
    also = [f"from {row.oldest} on"] if row.oldest else list(row.also)
    folders = ", ".join(f"`{package}`" for package in sorted(packages))
    return (
        f"| [{row.names[0]}]({row.url}) | {row.version} | {row.date} | {', '.join(also)} "
        f"| {folders} |"
    )


def page() -> str:
    """The whole page."""
    packages = cited_in()
    return ABOVE + "".join(f"{line(row, packages[row])}\n" for row in FRAMEWORKS) + BELOW


if __name__ == "__main__":
    TARGET.write_text(page(), encoding="utf-8")
