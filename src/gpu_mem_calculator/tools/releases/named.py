"""The releases that --at names: `vllm=0.14.1,transformers=4.57`, a month, a day, `newest`, or
a file that pins them, such as what pip freeze prints.
"""

from __future__ import annotations

import re
from calendar import monthrange
from collections.abc import Callable, Sequence
from datetime import date

from msgspec import Struct

from ...ledger.frameworks import FRAMEWORKS
from ...ledger.quoting import quoted
from ...run.releases import package_name
from ...runfile.text.errors import InputError, nearest
from .release import PACKAGES, Release, first_of_each, release_of

AT = "--at"
NEWEST = "newest"
DAY = re.compile(r"(\d{4})-(\d\d?)(?:-(\d\d?))?")
FORMS = "TOOL=RELEASE, a month such as 2025-06, or newest"
FILE_FORM = ", or a file such as what pip freeze prints"
Opener = Callable[[str], list[Release] | None]


class Named(Struct, frozen=True):
    """What --at names.

    - `releases`: of tools by name
    - `day`: each other tool has the release that was the newest on it, as 2025-06-30
    - `newest`: each other tool has the newest release that is modelled, whatever is installed
    - `listed`: of all packages of an environment, of which a run uses a few
    """

    releases: tuple[Release, ...] = ()
    day: str = ""
    newest: bool = False
    listed: tuple[Release, ...] = ()


class KnownReleases(Struct, frozen=True):
    """The releases where a command would run: those that are named, and others that were found."""

    named: Named = Named()
    here: tuple[Release, ...] = ()

    @property
    def all(self) -> dict[str, Release]:
        """The release of each package."""
        here = () if self.named.newest else self.here
        return first_of_each(self.named.releases, self.named.listed, here)


def read_at(texts: Sequence[str], opened: Opener | None = None) -> Named:
    """What the values of --at say, together; raises all problems at once.

    opened: gives the releases in a file, None where there is none of that name; without it no file
    is opened
    """
    releases: list[Release] = []
    listed: list[Release] = []
    days, problems, newest = [], [], False
    for part in (part.strip() for text in texts for part in text.split(",") if part.strip()):
        name, equals, version = part.partition("=")
        if part.lower() == NEWEST:
            newest = True
        elif found := DAY.fullmatch(part):
            day = _last_day(*found.groups())
            days.append(day)
            problems += [] if day else [f"{AT} {part}: there is no such day"]
        elif opened and (found_there := opened(part)) is not None:
            listed += found_there
        elif not equals:
            form = f"{FORMS}{FILE_FORM if opened else ''}"
            problems.append(f"{AT} {quoted(part)} is none of {form}")
        elif package_name(name) not in PACKAGES:
            hint = nearest(package_name(name), PACKAGES)
            known = hint or f"; {', '.join(row.name for row in FRAMEWORKS[:8])} are, among others"
            problems.append(f"{AT} {quoted(part)}: {quoted(name)} is no tool that is known{known}")
        elif release := release_of(name, version.removeprefix("=").strip(), AT):  # pip writes ==
            releases.append(release)
        else:
            problems.append(f"{AT} {quoted(part)}: a release is a number such as 0.14.1")
    packages = [one.package for one in releases]
    twice = sorted({name for name in packages if packages.count(name) > 1})
    problems += [f"{AT} names two releases of {name}; give one" for name in twice]
    if len(days) > 1 or (days and newest):
        problems.append(f"{AT} names two days; give one")
    if problems:
        raise InputError(problems)
    return Named(tuple(releases), "".join(days), newest, tuple(listed))


def _last_day(year: str, month: str, day: str | None) -> str:
    """A day; of a month alone, its last one; empty where there is none."""
    try:
        last = int(day) if day else monthrange(int(year), int(month))[1]
        return date(int(year), int(month), last).isoformat()
    except (ValueError, IndexError):
        return ""
