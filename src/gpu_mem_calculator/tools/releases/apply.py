"""Puts the user's releases beside the sections of a run, by the package of each."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from ...run.releases import package_name
from ...runfile.read import RELEASES
from ...runfile.text.errors import InputError
from .named import AT, Named
from .release import PACKAGES, Release, first_of_each

# Packages that decide beside a program's own, where it is made of them.
BELOW = ("transformers", "torch")
# A server whose package's name is another.
SERVERS = {"llamacpp": "llama-cpp"}


def with_releases(
    run: Mapping[str, Any], named: Named, others: Iterable[Release] = ()
) -> dict[str, Any]:
    """A run file with the releases of its tool: those that --at names, its own, others that were
    found, those of a day.

    Raises where --at names a release of none of its tools.
    """
    packages = list(packages_of(run))
    strange = [one.package for one in named.releases if one.package not in packages]
    if strange:
        has = f"it has {' and '.join(packages[:1])}" if packages else "it is no other tool's"
        raise InputError(
            f"{AT} names {strange[0]}, whose release changes nothing modelled of this run; {has}"
        )
    if named.listed and not any(one.package in packages for one in named.listed):
        uses = f"of {packages[0]}, which this run uses" if packages else "that this run uses"
        raise InputError(f"{named.listed[0].read_from} has no release {uses}")
    asked = first_of_each(named.releases, named.listed)
    found = first_of_each([] if named.newest else others, _of_day(named, packages))
    own = run.get(RELEASES) or {}
    told = {
        name: {"release": one.version, "read_from": one.read_from}
        for name, one in {**found, **asked}.items()
        if name in packages and (name in asked or name not in own)
    }
    return {**_unsaid(run, asked), RELEASES: {**own, **told}} if told else dict(run)


def with_names_at_release(run: dict[str, Any], written: Collection[str]) -> dict[str, Any]:
    """A run file whose program has the names that its arguments have at the user's release.

    Readers of other tools write the names of the release that is modelled.

    written: names that the user wrote, which stay: a release without one is refused
    """
    from ..translation.arguments import renamed
    from ..translation.at_release import at_release
    from ..translation.tools import TOOLS

    program = run.get("program") or {}
    tool, args = TOOLS.get(str(program.get("tool"))), program.get("args") or {}
    have = {name: _release(one) for name, one in (run.get(RELEASES) or {}).items()}
    version = have.pop(PACKAGES[package_name(tool.package)], "") if tool else ""
    at = at_release(tool.arguments, version, have) if tool and version else None
    if at is None:
        return run
    older = {new: old for old, new in renamed(at.path).items() if old in at.names}
    kept = at.names | set(written)
    names = {name: name if name in kept else older.get(name, name) for name in args}
    return {**run, "program": {**program, "args": {names[key]: args[key] for key in args}}}


def _release(given: Any) -> str:
    """The release of `{release, read_from}`, or of its text."""
    return str(given["release"] if isinstance(given, Mapping) else given)


def _unsaid(run: Mapping[str, Any], said: Collection[str]) -> dict[str, Any]:
    """A run file without the release that it says itself of a package that --at names."""
    found = dict(run)
    own = next(packages_of(run), "")
    for section, key in (("inference", "engine_version"), ("program", "version")):
        part = run.get(section)
        if isinstance(part, Mapping) and own in said:
            found[section] = {name: value for name, value in part.items() if name != key}
    return found


def packages_of(run: Mapping[str, Any]) -> Iterator[str]:
    """The packages whose releases decide: of the server, or of the program and below it."""
    engine = str((run.get("inference") or {}).get("engine") or "").lower()
    if engine:
        name = SERVERS.get(engine) or PACKAGES.get(package_name(engine))
        yield from [name] if name and engine != "transformers" else []
        yield from run.get(RELEASES) or {}  # those that the reader of its tool found
        return
    yield from run.get(RELEASES) or {}  # those that the reader of its tool found
    from ..translation.tools import TOOLS

    tool = TOOLS.get(str((run.get("program") or {}).get("tool")))
    if tool is not None:
        yield from dict.fromkeys((PACKAGES[package_name(tool.package)], *BELOW))


def _of_day(named: Named, packages: Iterable[str]) -> Iterator[Release]:
    """The newest release of each package on the day that --at names."""
    if not named.day:
        return
    from ..translation.releases import newest_on

    for package in packages:
        newest = newest_on(package, named.day)
        if newest:
            yield Release(package, newest, f"the newest on {named.day}")
