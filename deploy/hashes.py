"""Lists what an install from source takes from an index, with hashes: requirements.txt.

    python deploy/hashes.py

The versions are those of constraints.txt. Run it after one of them changes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

HERE = Path(__file__).parent
LIST, PINS = HERE / "requirements.txt", HERE.parent / "constraints.txt"
# What the package needs, and what builds it (pyproject.toml) with what that needs.
NAMES = (
    "msgspec",
    "PyYAML",
    "hatchling",
    "packaging",
    "pathspec",
    "pluggy",
    "tomlkit",
    "trove-classifiers",
)
INDEX = os.environ.get("INDEX", "https://pypi.org/simple")
HEAD = "# Made by deploy/hashes.py: what an install from source takes from an index.\n"


def pins() -> dict[str, str]:
    """The version of each package of constraints.txt."""
    return dict(re.findall(r"^([\w.-]+)==(\S+)", PINS.read_text(encoding="utf-8"), re.MULTILINE))


def hashes(name: str, version: str) -> list[str]:
    """The SHA-256 of each wheel of a release, as an index states them."""
    begin = re.escape(re.sub(r"[-.]+", "_", name)) + f"-{re.escape(version)}"
    with urlopen(f"{INDEX}/{name.lower()}/", timeout=60) as answer:  # PEP 503: a page of links
        page = answer.read().decode()
    links = re.finditer(rf"/{begin}-[^/#\"]+\.whl#sha256=([0-9a-f]{{64}})", page, re.IGNORECASE)
    return sorted({found[1] for found in links})


def lines() -> Iterator[str]:
    """A requirement each, with its hashes."""
    versions = pins()
    for name in NAMES:
        rows = [f"{name}=={versions[name]}"]
        rows += [f"    --hash=sha256:{one}" for one in hashes(name, versions[name])]
        yield " \\\n".join(rows) + "\n"


if __name__ == "__main__":
    LIST.write_text(HEAD + "".join(lines()), encoding="utf-8")
