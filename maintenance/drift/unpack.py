"""`python -m maintenance.drift.unpack PACKAGE RELEASE FOLDER`: a release's Python files, to read.

Of a wheel of hundreds of megabytes only the Python files are read; nothing is installed.
"""

from __future__ import annotations

import sys
from pathlib import Path

from ..releases.index import Files, releases


def unpack(package: str, release: str, folder: Path) -> int:
    """Write the Python files of a release below a folder; returns how many there are."""
    found = next((one for one in releases(package) if one.version == release), None)
    if found is None:
        raise SystemExit(f"the package index has no release {release} of {package}")
    files = Files(found)
    names = sorted(name for name in files.names if name.endswith(".py"))
    for name in names:
        target = (folder / name).resolve()
        if not target.is_relative_to(folder.resolve()):
            raise SystemExit(f"{name} would be written outside of {folder}")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(files.text(name), encoding="utf-8")
    return len(names)


if __name__ == "__main__":
    print(unpack(sys.argv[1], sys.argv[2], Path(sys.argv[3])), "files")
