"""A release of a package, and where it was read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from msgspec import Struct

from ...ledger.frameworks import FRAMEWORKS
from ...ledger.quoting import quoted
from ...run.releases import package_name

# A release as package indexes, tags and builds write it: 0.14.1, v4.57, 0.8.5.post1, b4719.
VERSION = re.compile(r"v?\d+(\.\d+)*([._-]?(a|b|rc|post|dev)\d*)*(\+[\w.]+)?|b\d+", re.IGNORECASE)
LONGEST = 40  # characters of a release


class Release(Struct, frozen=True):
    """A release of a package; `read_from` is where it stands, in the user's words."""

    package: str
    version: str
    read_from: str


class FoundReleases(Struct, frozen=True):
    """The releases that were found, and a sentence for what could not be read."""

    releases: tuple[Release, ...] = ()
    notes: tuple[str, ...] = ()


# Every way to write a package's name -> its name.
PACKAGES: Mapping[str, str] = {
    package_name(name): package_name(row.package or row.name)
    for row in FRAMEWORKS
    for name in (row.package or row.name, *row.names)
}


def release_of(name: str, version: str, read_from: str) -> Release | None:
    """The release of a package that matters here; None for others, and for what is no release."""
    found = stated(name, version, read_from)
    return found if isinstance(found, Release) else None


def stated(name: str, version: str, read_from: str) -> Release | str | None:
    """The same, but a sentence for what is no release of a package that matters."""
    package = PACKAGES.get(package_name(name))
    if package is None:
        return None
    number = version.removesuffix(".*")
    if len(number) > LONGEST or not VERSION.fullmatch(number):
        return f"{read_from} has {package} {quoted(version)}, which is no release"
    return Release(package, number.removeprefix("v"), read_from)


def first_of_each(*found: Iterable[Release]) -> dict[str, Release]:
    """The first release of each package: of what is given first, then of the rest."""
    chosen: dict[str, Release] = {}
    for releases in found:
        for one in releases:
            chosen.setdefault(one.package, one)
    return chosen
