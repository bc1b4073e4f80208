"""The documents as mkdocs wants them: links to files outside `docs/` lead to copies, and lists and
tables have blank lines around them.
"""

from __future__ import annotations

import os
import re
import shutil
from functools import partial
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
OUTSIDE = {
    "README.md": "index.md",
    "CHANGELOG.md": "changes.md",
    "CONTRIBUTING.md": "contributing.md",
}
PICTURES = (".svg", ".png")
FILES = "files"  # where copies of other files lie
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s#]+)(#[^)\s]*)?\)")
LIST = re.compile(r"(?:[-*] |\d+\. )")
FENCE = re.compile(r"\s*(```|~~~)")


def write(folder: Path) -> None:
    """Write a copy of every document and of what it shows or links."""
    for path in (*DOCS.rglob("*.md"), *map(ROOT.joinpath, OUTSIDE)):
        target = folder / staged(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        text = LINK.sub(partial(_link, document=path, folder=folder), path.read_text("utf-8"))
        target.write_text("\n".join(spaced(text.splitlines())) + "\n", encoding="utf-8")
    for path in DOCS.rglob("*"):
        if path.suffix in PICTURES:
            (folder / staged(path)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, folder / staged(path))


def staged(path: Path) -> str:
    """Where a file of the repository lies in the copy."""
    name = path.relative_to(ROOT).as_posix()
    if name in OUTSIDE:
        return OUTSIDE[name]
    if name == "docs/deploy/README.md":
        return "deploy/index.md"
    return name.removeprefix("docs/") if name.startswith("docs/") else f"{FILES}/{name}"


def _link(link: re.Match[str], document: Path, folder: Path) -> str:
    """A link of a document as it is in the copy; to a folder or to code, its words alone."""
    picture, words, address, anchor = link[1], link[2], link[3], link[4] or ""
    if "://" in address or address.startswith("mailto:"):
        return link[0]
    target = (document.parent / address).resolve()
    inside = target.is_relative_to(DOCS) or target.relative_to(ROOT).as_posix() in OUTSIDE
    shown = target.suffix in (".md", *PICTURES)
    if target.is_dir() or target.suffix == ".py" or (shown and not inside):
        return words
    if not (inside and shown):
        (folder / staged(target)).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(target, folder / staged(target))
    here = Path(staged(document)).parent
    return f"{picture}[{words}]({os.path.relpath(staged(target), here)}{anchor})"


def spaced(lines: list[str]) -> list[str]:
    """The lines with blank ones before lists and around comments, but not in blocks of code."""
    made: list[str] = []
    in_code = False
    for line in lines:
        if FENCE.match(line):
            in_code = not in_code
        before = made[-1] if made else ""
        begins = LIST.match(line) and not LIST.match(before) and not before.startswith(" ")
        comment = line.startswith("<!--") or before.startswith("<!--")
        if not in_code and before and (begins or comment):
            made.append("")
        made.append(line)
    return made
