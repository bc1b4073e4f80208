"""`python -m maintenance.documents FOLDER`: write the documents as a site into a folder.

The documents stay as they are; what mkdocs reads is a copy, with pages that are made of the code.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from . import copies, frameworks, python_names

SETTINGS = Path(__file__).parent / "mkdocs.yml"
THEME = Path(__file__).parent / "theme"


def main(arguments: list[str] | None = None) -> int:
    """Build; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m maintenance.documents", description=__doc__)
    parser.add_argument("folder", type=Path, help="is emptied first")
    return build(parser.parse_args(arguments).folder)


def build(folder: Path) -> int:
    """Write the site; returns mkdocs' exit code, which is 1 where a link leads nowhere."""
    with tempfile.TemporaryDirectory() as place:
        pages = Path(place) / "docs"
        copies.write(pages)
        made = {**frameworks.pages(), "python.md": python_names.page()}
        for name, text in made.items():
            path = pages / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        shutil.copytree(THEME, pages / THEME.name)
        shutil.copy(SETTINGS, place)
        line = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--clean"]
        target = ["--config-file", f"{place}/{SETTINGS.name}", "--site-dir", str(folder.absolute())]
        quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
        return subprocess.run([*line, *target], check=False, env=quiet).returncode


if __name__ == "__main__":
    raise SystemExit(main())
