"""The releases that a text names: what pip and conda listed, and what programs and people say."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator

from ...run.releases import package_name
from ..translation.releases import order, package_releases
from .pins import frozen
from .release import PACKAGES, Release, release_of

BEGIN, END = 40_000, 20_000  # characters at the begin and the end of a text that are read
VERSION = r"v?(\d+\.\d+(?:\.\d+)*(?:\.?post\d+)?)(?![\w.]*\.\d)"
# A name with what stands between it and its release; and the next release behind it.
BETWEEN = r"(?:'s)?(?:[ _-](?:version|release))?[\s:=@(`*\"|]{0,6}(?:is |at |from |to )?"
AND = r"[`)*\"]*\s*(?:,|and|to|->|-->|→|=>|vs\.?|or|/)+\s*[`*\"]*"
# Words behind which a release without a name is that of the run's own program.
UNNAMED = re.compile(
    rf"(?i)(?:\b(?:from|to|on|with|in|since|version|release|until|till|and|than)\s+|->\s*|→\s*|\bv){VERSION}"
)
TEXT = "the text"


def releases_in_text(text: str, packages: Collection[str]) -> tuple[Release, ...]:
    """The releases of packages that a text names, each once; the first package is the run's own."""
    own = next(iter(packages), "")
    if len(text) > BEGIN + END:
        text = f"{text[:BEGIN]}\n{text[-END:]}"
    listed, prose = frozen(text, TEXT)
    found = [one for one in listed if one.package in packages]
    names = sorted((name for name, one in PACKAGES.items() if one in packages), key=len)
    for name in reversed(names):
        found += _named(prose, name)
    found += _unnamed(prose, own)
    return tuple({(one.package, one.version): one for one in found}.values())


def _named(text: str, name: str) -> Iterator[Release]:
    """The releases behind a package's name."""
    written = re.escape(name).replace(r"\-", "[-_. ]?").replace(r"\ ", "[-_. ]?")
    form = re.compile(rf"(?i)(?<![\w./-]){written}{BETWEEN}{VERSION}")
    then = re.compile(rf"(?i){AND}(?:{written}{BETWEEN})?{VERSION}")
    for one in form.finditer(text):
        more = then.match(text, one.end())
        for version in (one[1], *([more[1]] if more else [])):
            yield from _release(name, version)


def _unnamed(text: str, package: str) -> Iterator[Release]:
    """Releases without a name, of those that the package has had."""
    known = package_releases(package) if package else {}
    for one in UNNAMED.finditer(text):
        if one[1] in known:
            yield from _release(package, one[1])


def _release(name: str, version: str) -> Iterator[Release]:
    found = release_of(name, version, TEXT)
    if found is not None and _is_near(found):
        yield found


def _is_near(release: Release) -> bool:
    """Whether a package has had such a release: in prose a number can be another thing's."""
    known = package_releases(package_name(release.package))
    series = [order(one)[0][:1] for one in known]
    return not known or order(release.version)[0][:1] in series


def span(releases: Collection[Release], keep: Callable[[Release], bool]) -> tuple[Release, ...]:
    """The oldest and the newest of those to keep; one where there is one."""
    found = sorted(filter(keep, releases), key=lambda one: order(one.version))
    return tuple(dict.fromkeys((*found[:1], *found[-1:])))
