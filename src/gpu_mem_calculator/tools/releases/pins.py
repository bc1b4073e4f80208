"""Releases that files pin: requirements, lock files, a Dockerfile, and pip's own list."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from ...runfile.text.errors import InputError
from ...runfile.text.files import read_text
from ..translation.arguments import argument_data
from .release import Release, release_of

# Files of a project that pin releases, the most exact first.
FILES = (
    *("uv.lock", "poetry.lock", "pdm.lock", "pylock.toml", "Pipfile.lock"),
    *("requirements*.txt", "environment.yml", "environment.yaml", "Dockerfile", "Containerfile"),
)
NAME = r"([A-Za-z0-9][\w.-]*)"
PINNED = re.compile(NAME + r"(?:\[[^\]\n]*\])?\s*={2,3}\s*v?([\w.+!-]+)")  # name[extra]==1.2
TAGGED = re.compile(NAME + r"(?:\[[^\]\n]*\])?\s*@\s*git\+\S+?@v?(\d[\w.]*)")  # name @ git+...@v1.2
CONDA_PINNED = re.compile(r"^\s*-\s*" + NAME + r"=(\d[\w.]*)", re.MULTILINE)  # - name=1.2=build
LOCKED = re.compile(r'^name = "([^"\n]+)"\nversion = "([^"\n]+)"', re.MULTILINE)
JSON_LOCKED = re.compile(r'"([^"\n]+)":\s*\{[^{}]*?"version":\s*"==([^"\n]+)"')
FROM = re.compile(r"^\s*FROM\s+(?:--\S+\s+)*(\S+)", re.MULTILINE | re.IGNORECASE)
FROZEN = re.compile(NAME + r"\s*(?:==\s*[\w.+!-]+|@\s*\S+)\s*")
# Images of tools: the package, by a pattern of the image's name; and where its tag has the release.
IMAGES: Mapping[str, Mapping[str, str]] = argument_data("images", Path(__file__).parent)["images"]


def pinned(folder: Path) -> Iterator[Release]:
    """The releases that the files of a folder pin; the first file of a package wins."""
    for pattern in FILES:
        for path in sorted(folder.glob(pattern)):
            try:
                text = read_text(path)
            except (InputError, OSError):  # too long, or not a text: it pins nothing that is read
                continue
            yield from releases_in(text, path.name)


def releases_in(text: str, name: str) -> Iterator[Release]:
    """The releases that a text pins: a file's, a script's `pip install`, pip's own list."""
    patterns = [PINNED, TAGGED, LOCKED]
    patterns += [CONDA_PINNED] if name.startswith("environment") else []
    patterns += [JSON_LOCKED] if name.endswith(".lock") else []
    for pattern in patterns:
        for found in pattern.finditer(text):
            if release := release_of(found[1], found[2], name):
                yield release
    for found in FROM.finditer(text):
        yield from image_releases(found[1], name)


def image_releases(image: str, name: str = "the image's tag") -> Iterator[Release]:
    """The releases that an image's tag names, where it is a tool's own."""
    path, _, tag = image.partition("@")[0].rpartition(":")
    if "/" in tag or not path:
        return
    for pattern, row in IMAGES.items():
        if re.fullmatch(rf"(?:.*/)?{pattern}", path):
            found = re.search(row["tag"], tag)
            release = found and release_of(row["package"], found[1], name)
            yield from [release] if release else []


def frozen(text: str) -> tuple[list[Release], str]:
    """The releases of the lines that pip freeze printed, and the text without them."""
    lines = text.splitlines()
    listed = [FROZEN.fullmatch(line) is not None for line in lines]
    if sum(listed) < 2:  # one such line alone is part of something else
        return [], text
    said = "\n".join(line for line, one in zip(lines, listed, strict=True) if one)
    rest = "\n".join(line for line, one in zip(lines, listed, strict=True) if not one)
    return list(releases_in(said, "pip freeze")), rest
