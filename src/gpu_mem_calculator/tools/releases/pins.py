"""Releases that files pin: requirements, lock files, a Dockerfile, and what pip and conda list."""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from ...ledger.units import MIB
from ...runfile.text.errors import InputError
from ...runfile.text.files import STANDARD_INPUT, STDIN, read_text
from ..translation.arguments import argument_data
from .named import AT
from .release import FoundReleases, Release, release_of, stated

# Files of a project that pin releases, the most exact first.
FILES = (
    *("uv.lock", "poetry.lock", "pdm.lock", "pylock.toml", "Pipfile.lock"),
    *("requirements*.txt", "environment.yml", "environment.yaml", "Dockerfile", "Containerfile"),
)
LOCKS = tuple(name for name in FILES if name.endswith(".lock") or name == "pylock.toml")
MOST_PIN_BYTES = 8 * MIB  # of a lock file, which is searched and not parsed
NAME = r"(?<![\w.-])([A-Za-z0-9][\w.-]*)"
# name[extra]==1.2, or a variable in its place
PINNED = re.compile(NAME + r"""(?:\[[^\]\n]*\])?\s*={2,3}\s*([^\s;,&|'"\\)\]]+)""")
TAGGED = re.compile(NAME + r"(?:\[[^\]\n]*\])?\s*@\s*git\+\S+?@v?(\d[\w.]*)")  # name @ git+...@v1.2
CONDA_PINNED = re.compile(r"^\s*-\s*" + NAME + r"=(\d[\w.]*)")  # - name=1.2=build
CONDA_LISTED = re.compile("^" + NAME + r"=(\d[\w.]*)=\w+")  # name=1.2=build
LOCKED = re.compile(r'\nname = "([^"\n]+)"\nversion = "([^"\n]+)"')
JSON_LOCKED = re.compile(r'"([^"\n]+)":\s*\{[^{}]*"version":\s*"==([^"\n]+)"')
# What pip and conda print as JSON.
JSON_LISTED = re.compile(r'"name":\s*"([^"]+)",\s*(?:"platform":[^,]*,\s*)?"version":\s*"([^"]+)"')
FROM = re.compile(r"\s*FROM\s+(?:--\S+\s+)*(\S+)", re.IGNORECASE)
# What a Dockerfile sets, and where it stands for something.
SETS = re.compile(r"\s*(?:ARG|ENV)\s+(.*)", re.IGNORECASE)
VALUE = re.compile(r"""(\w+)(?:=|\s+)["']?([^\s"']+)""")
NAMED = re.compile(r"\$(?:(\w+)|\{(\w+)(?::-([^}\s]*))?\})")
HASH = "--hash="  # of a requirement, a line of its own for each file of the package
COMMENT = re.compile(r"(?:^|\s)#.*")
# A line of pip freeze, of conda list --export, of what vLLM's collect_env prints.
FROZEN = re.compile(
    r"(?:\[pip3?\] )?" + NAME + r"\s*(?:==\s*[\w.+!-]+|@\s*\S+|=\d[\w.]*=\w+)\s*|-e git\+\S+"
)
# The head of a table of pip list, uv pip list or conda list, the line below it, and its lines.
HEAD = re.compile(r"\s*#?\s*(?:Package|Name)\s+Version\b.*")
RULE = re.compile(r"[\s\u2500-]+")
ROW = re.compile(r"\s*" + NAME + r"\s+v?(\d\S*)(?:\s+\S+)*\s*")
# Images of tools: the package, by a pattern of the image's name; and where its tag has the release.
IMAGES: Mapping[str, Mapping[str, str]] = argument_data("images", Path(__file__).parent)["images"]


def pinned(folder: Path) -> FoundReleases:
    """The releases that the files of a folder pin; the first file of a package wins."""
    found: list[Release] = []
    notes: list[str] = []
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        where = "this folder" if folder == Path() else folder
        return FoundReleases(notes=(f"{where} cannot be read: {error.strerror}",))
    for pattern in FILES:
        for name in fnmatch.filter(names, pattern):
            try:
                text = read_text(folder / name, most=MOST_PIN_BYTES)
            except InputError as error:
                notes += error.problems
            else:
                for one in releases_in(text, name):
                    found += [one] if isinstance(one, Release) else []
                    notes += [one] if isinstance(one, str) else []
    return FoundReleases(tuple(found), tuple(notes))


def file_releases(path: str) -> list[Release] | None:
    """The releases in a file that the user names, or in standard input (`-`); None where there is
    no such file; raises where it has none.
    """
    if path != STDIN and not os.path.exists(path):
        return None
    text = read_text(path, AT, most=MOST_PIN_BYTES)
    name = STANDARD_INPUT if path == STDIN else os.path.basename(path)
    in_table = any(map(HEAD.fullmatch, text.splitlines()))
    found = [*_releases(releases_in(text, name)), *_releases(_matched(JSON_LISTED, text, name))]
    found += _rows(text.splitlines(), name) if in_table else []
    if not found:
        raise InputError(
            f"{AT} {path} has no release of a tool that is known; give what pip freeze prints"
        )
    return found


def releases_in(text: str, name: str) -> Iterator[Release | str]:
    """The releases that a file's text pins, and a sentence for what names none."""
    if name in LOCKS:
        pattern = JSON_LOCKED if name == "Pipfile.lock" else LOCKED
        yield from _matched(pattern, text, name)
        if text.strip() and not pattern.search(text):
            yield f"{name} has no package with a release, so nothing is read from it"
        return
    is_image = "dockerfile" in name.lower() or "containerfile" in name.lower()
    lines = list(_with_values(text.splitlines())) if is_image else text.splitlines()
    pins = [
        COMMENT.sub("", line)
        for line in lines
        if ("=" in line or "@" in line) and not line.lstrip().startswith(HASH)
    ]
    for pattern in (PINNED, TAGGED, CONDA_PINNED, CONDA_LISTED):
        yield from _matched(pattern, pins, name)
    for found in map(FROM.match, lines if is_image else ()):
        yield from image_releases(found[1], name) if found else ()
        if found and "$" in found[1] and _image_row(found[1]):
            yield f"{name} begins with {found[1]}, whose tag is given when it is built"


def _with_values(lines: Iterable[str]) -> Iterator[str]:
    """The lines of a Dockerfile with what it sets in the places of its variables."""
    values: dict[str, str] = {}

    def value(found: re.Match[str]) -> str:
        return values.get(found[1] or found[2]) or found[3] or found[0]

    for line in lines:
        given = NAMED.sub(value, line) if "$" in line else line
        if sets := SETS.match(given):
            values |= dict(VALUE.findall(sets[1]))
        yield given


def _releases(found: Iterable[Release | str]) -> Iterator[Release]:
    """The releases among what was found."""
    return (one for one in found if isinstance(one, Release))


def _matched(
    pattern: re.Pattern[str], texts: str | list[str], name: str
) -> Iterator[Release | str]:
    """The releases where a pattern is found in a text, or in lines."""
    for text in [texts] if isinstance(texts, str) else texts:
        for found in pattern.finditer(text):
            if release := stated(found[1], found[2], name):
                yield release


def _rows(lines: list[str], name: str) -> Iterator[Release]:
    """The releases in the lines of a table."""
    for row in map(ROW.fullmatch, lines):
        if row and (release := release_of(row[1], row[2], name)):
            yield release


def image_releases(image: str, name: str = "the image's tag") -> Iterator[Release]:
    """The releases that an image's tag names, where it is a tool's own."""
    row = _image_row(image)
    if row is None:
        return
    found = re.search(row["tag"], image.partition("@")[0].rpartition(":")[2])
    release = found and release_of(row["package"], found[1], name)
    yield from [release] if release else []


def _image_row(image: str) -> Mapping[str, str] | None:
    """The row of a tool's own image; None for others, and for one without a tag."""
    path, _, tag = image.partition("@")[0].rpartition(":")
    if "/" in tag or not path:
        return None
    rows = (row for pattern, row in IMAGES.items() if re.fullmatch(rf"(?:.*/)?{pattern}", path))
    return next(rows, None)


def frozen(text: str, name: str) -> tuple[list[Release], str]:
    """The releases in the lines that pip or conda printed of an environment, and the text without
    those lines.
    """
    said: list[str] = []
    rest: list[str] = []
    in_table = False
    for line in text.splitlines():
        begins = HEAD.fullmatch(line) is not None
        in_table = begins or (
            in_table and (RULE.fullmatch(line) or ROW.fullmatch(line)) is not None
        )
        (said if in_table or FROZEN.fullmatch(line) else rest).append(line)
    if len(said) < 2:  # one such line alone is part of something else
        return [], text
    lines = "\n".join(said)
    return [*_releases(releases_in(lines, name)), *_rows(said, name)], "\n".join(rest)
