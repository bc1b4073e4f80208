"""Releases of a server: their numbers, and what is said of one that is not modelled."""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec import Struct

from .run import Run

Version = tuple[int, int, int]


OWN = "the run file"  # where a release stands that nothing else says


class UserRelease(Struct, frozen=True):
    """A release that the user has; `read_from` is where it stands, in the user's words."""

    release: str
    read_from: str = OWN

    def __str__(self) -> str:
        return f"{self.release} ({self.read_from})"


def package_name(name: str) -> str:
    """A name as package indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name.strip().lower())


def parse_version(text: str) -> Version | None:
    """Major, minor and patch of `1.2.1` or `1.1.0rc3`; None if the text is not a version."""
    match = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?", text)
    return (int(match[1]), int(match[2]), int(match[3] or 0)) if match else None


def version_text(number: Version) -> str:
    """A version as people write it: 0.5.18."""
    return ".".join(map(str, number))


def modelled_version(run: Run, newest: Version) -> Version:
    """The version that is modelled: the run's, at most the newest."""
    return min(newest, parse_version(str(run.options["engine_version"])) or newest)


def version_problems(run: Run, title: str, oldest: Version) -> Iterator[str]:
    """A sentence where `engine_version` is not a version, or older than the oldest modelled one."""
    name = run.options["engine_version"]
    if (parse_version(str(name)) or (0, 0, 0)) < oldest:
        text = f"inference.engine_version={name!r} is not a version of {title} that is modelled"
        yield f"{text}; use {version_text(oldest)} or newer"


def newer_version_notes(run: Run, title: str, newest: Version) -> Iterator[str]:
    """A sentence where the version is newer than the newest modelled one."""
    name = run.options["engine_version"]
    if (parse_version(str(name)) or newest) > newest:
        yield f"{title} {name} is modelled as {version_text(newest)}, the newest that is"
