"""What the arguments of a tool were at any of its releases.

`<table>.lock.json` beside a table of arguments has it: maintenance/releases writes it from the
tool's own files. The table says what a person judged: effects, reasons, and in `[renamed]` what a
name is called in later releases. Nothing here is loaded until a release is asked for.

Releases are in the order of their versions. `release_of` gives the release of a date, `nearest` the
release that a version names in part, or the last one before it.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from msgspec import Struct

from ...catalog.kept import read_made, read_table
from ...run.releases import package_name

FOLDER = Path(__file__).parents[1]  # its folders have the locks, beside the tables
STATES = ("default", "computed", "required")  # of which an argument has one
SEVERAL = ("choices", "flags", "programs")
CLAUSE = re.compile(r"([=!~<>]=|[<>])\s*([\w.*]+)")  # of a range of releases


class Stated(Struct, frozen=True, kw_only=True):
    """An argument as a release states it.

    - default: its value; None where it is `computed` or `required`
    - computed: the code of a default that only runs can tell
    - type: what it takes, as Python writes a union; choices: its values, where they are known
    - form: how it is written in a command: `flag` (no value), `off` (a flag that turns it off),
      `switch` (a value or none), `list`, `repeated`; else with one value
    - flags: other names of the option, as they are written
    - programs: those that take it, where no program that is read does
    """

    default: Any = None
    computed: str = ""
    required: bool = False
    type: str = ""
    choices: tuple[Any, ...] = ()
    form: str = ""
    flags: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()


class ReleaseLock(Struct, frozen=True):
    """A lock: the package, the date of each release, and what a table inherits from which release
    on; `arguments`: the spans of each name; `requires`: those of what releases allow of others.
    """

    package: str
    releases: Mapping[str, str]
    arguments: Mapping[str, list[dict[str, Any]]]
    bases: list[dict[str, Any]]
    order: Mapping[str, int]
    requires: Mapping[str, list[dict[str, Any]]]

    def holding(self, spans: list[dict[str, Any]], release: str) -> Iterator[dict[str, Any]]:
        """The spans that began at a release or before it."""
        place = self.order[release]
        return (span for span in spans if self.order[span["from"]] <= place)


def has_lock(path: str, folder: Path = FOLDER) -> bool:
    """Whether a table of arguments has a lock; `path` as in `argument_table`."""
    return (folder / f"{path}.lock.json").exists()


@cache
def release_lock(path: str, folder: Path = FOLDER) -> ReleaseLock:
    """The lock of a table of arguments."""
    data = read_table(f"{folder}/{path}.lock.json")
    dates, arguments = data["releases"], data["arguments"]
    order = {release: place for place, release in enumerate(dates)}
    bases, requires = data.get("bases", []), data.get("requires", {})
    return ReleaseLock(data["package"], dates, arguments, bases, order, requires)


def releases(path: str, folder: Path = FOLDER) -> tuple[str, ...]:
    """The releases that a table's lock has, the oldest first."""
    return tuple(release_lock(path, folder).releases)


def release_of(path: str, date: str, folder: Path = FOLDER) -> str:
    """The newest release on a date (`2025-06-14`) or at the end of a month (`2025-06`).

    The oldest one where there was none.
    """
    dates = release_lock(path, folder).releases
    there = [release for release, day in dates.items() if day[: len(date)] <= date]
    return there[-1] if there else next(iter(dates))


def allowed_range(path: str, release: str, package: str, folder: Path = FOLDER) -> str:
    """The releases of another package that a release allows, such as `>=4.41.2,<4.50`."""
    lock, found = release_lock(path, folder), ""
    for span in lock.holding(lock.requires.get(package, []), release):
        found = span["range"]
    return found


@cache
def package_releases(package: str, folder: Path = FOLDER) -> Mapping[str, str]:
    """The date of each release of a package that a lock has, the oldest first."""
    tables = (_dates(folder / f"{table}.lock.json") for table in tables_of(package, folder))
    found = {release: day for one in tables for release, day in one["releases"].items()}
    return {release: found[release] for release in sorted(found, key=order)}


def newest_on(package: str, date: str, text: str = "", folder: Path = FOLDER) -> str:
    """The newest release of a package in a range that was there on a date; the oldest in it where
    none was; empty where none is in it.
    """
    dates = package_releases(package, folder)
    there = [release for release in dates if in_range(release, text)]
    old = [release for release in there if dates[release] <= date]
    return old[-1] if old else next(iter(there), "")


def in_range(version: str, text: str) -> bool:
    """Whether a release is in a range as packages write it: `!=4.46.*,<=4.49.0,>=4.41`."""
    return all(_holds(version, *one) for one in CLAUSE.findall(text))


def _holds(version: str, sign: str, bound: str) -> bool:
    series = bound.removesuffix(".*")
    own, other = _plain_order(version), _plain_order(series)
    if series != bound or sign == "~=":  # the last number of ~= may grow
        first = other[0][:-1] if sign == "~=" else other[0]
        same = order(version)[0][: len(first)] == first
        return same and own >= other if sign == "~=" else same == (sign == "==")
    return (
        (own == other and sign in ("==", "<=", ">="))
        or (own < other and sign in ("<", "<=", "!="))
        or (own > other and sign in (">", ">=", "!="))
    )


def _plain_order(version: str) -> tuple[list[int], int]:
    """The order of a version without zeros at its end: 0.12.0 is 0.12."""
    numbers, post = order(version)
    while numbers and not numbers[-1]:
        numbers = numbers[:-1]
    return numbers, post


def nearest(path: str, version: str, folder: Path = FOLDER) -> str:
    """The release that a version means: itself, the newest that it begins (`4.57`), else the last
    one before it, or the oldest.
    """
    known = releases(path, folder)
    if version in known:
        return version
    begun = [one for one in known if one.startswith(f"{version}.")]
    before = [one for one in known if order(one) <= order(version)]
    return (begun or before or known[:1])[-1]


def order(version: str) -> tuple[list[int], int]:
    """What releases are compared by: numbers, then the post-release."""
    main, _, post = version.partition("post")
    return [int(part) for part in re.findall(r"\d{1,9}", main)], int(post) if post.isdigit() else -1


@cache
def _own(path: str, release: str, folder: Path) -> Mapping[str, Stated]:
    """The arguments of a table's own classes at a release of its lock."""
    lock, found = release_lock(path, folder), {}
    for name, spans in lock.arguments.items():
        state: dict[str, Any] | None = None
        for span in lock.holding(spans, release):
            state = _after(state or {}, span)
        if state is not None:
            state |= {key: tuple(state.get(key, ())) for key in SEVERAL}
            found[name] = Stated(**state)
    return found


def _after(state: dict[str, Any], span: Mapping[str, Any]) -> dict[str, Any] | None:
    """An argument after a span, which has what differs; None where it is gone."""
    if "gone" in span:
        return None
    new = {key: value for key, value in span.items() if key != "from"}
    if isinstance(change := new.get("choices"), dict):
        left = [one for one in state["choices"] if one not in change.get("removed", ())]
        new["choices"] = [*left, *change.get("added", ())]
    if not new.keys().isdisjoint(STATES):
        state = {key: value for key, value in state.items() if key not in STATES}
    return state | new


def stated_at(
    path: str, release: str, inherited: Container[str], folder: Path = FOLDER
) -> dict[str, tuple[Any, str]]:
    """The default and the type of a table's own arguments at a release.

    A default is None where only runs can tell it.

    Of an argument that the release does not have, the last before it, or the first after it; none
    if it is inherited.
    """
    found = read_made(f"{folder}/{path}.lock.json", release, _stated_of)
    gone = {name: stated for name, stated in found["gone"].items() if name not in inherited}
    return {name: (one[0], one[1]) for name, one in {**found["there"], **gone}.items()}


def _stated_of(data: Mapping[str, Any], release: str) -> dict[str, dict[str, list[Any]]]:
    """Defaults and types of a lock at a release, of arguments that it has and of the others."""
    order = {name: place for place, name in enumerate(data["releases"])}
    found: dict[str, dict[str, list[Any]]] = {"there": {}, "gone": {}}
    for name, spans in data["arguments"].items():
        default, type_, met, there = None, "", False, False
        for span in spans:
            if order[span["from"]] <= order[release]:
                there = "gone" not in span
            elif met:
                break
            if {"default", "computed", "required"} & span.keys():
                default, met = span.get("default"), True
            type_ = span.get("type", type_)
        found["there" if there else "gone"][name] = [default, type_]
    return found


def arguments_at(
    path: str, release: str, others: Mapping[str, str] | None = None, folder: Path = FOLDER
) -> Mapping[str, Stated]:
    """The arguments of a tool at a release of its lock, by name.

    - others: releases of other packages, for what the tool inherits from them (`trl` from
      `transformers`); those that are not given are the newest on the day of the release
    """
    lock, others = release_lock(path, folder), others or {}
    found: dict[str, Stated] = {}
    tables: list[str] = []
    for span in lock.holding(lock.bases, release):
        tables = span["tables"]
    for table in tables:
        package = release_lock(table, folder).package
        given = release if package == lock.package else others.get(package)
        at = nearest(table, given, folder) if given else None
        at = at or release_of(table, lock.releases[release], folder)
        found.update(arguments_at(table, at, others, folder))
    return {**found, **_own(path, release, folder)}


def span_of(path: str, name: str, folder: Path = FOLDER) -> tuple[str, str]:
    """The first release that has an argument, and the first that has it no more; empty where none.

    Of what a table inherits, that of the table that has it.
    """
    owner = owner_of(path, name, folder)
    if not owner:
        return "", ""
    spans = release_lock(owner, folder).arguments[name]
    return spans[0]["from"], spans[-1]["from"] if "gone" in spans[-1] else ""


def owner_of(path: str, name: str, folder: Path = FOLDER) -> str:
    """The table that has an argument itself, of one and those that it inherits; empty where none
    has it.
    """
    lock = release_lock(path, folder)
    if name in lock.arguments:
        return path
    tables = {table for span in lock.bases for table in span["tables"]}
    return next(filter(None, (owner_of(table, name, folder) for table in sorted(tables))), "")


def tables_of(package: str, folder: Path = FOLDER) -> Iterator[str]:
    """The tables whose lock is of a package."""
    for path in sorted(folder.glob("*/*.lock.json")):
        if package_name(_dates(path)["package"]) == package:
            yield path.relative_to(folder).as_posix().removesuffix(".lock.json")


@cache
def _dates(path: Path) -> Mapping[str, Any]:
    """The package of a lock and the date of each release, kept by themselves: locks are large."""
    found: Mapping[str, Any] = read_made(str(path), "dates", _dates_of)
    return found


def _dates_of(data: Mapping[str, Any], _: str) -> dict[str, Any]:
    return {"package": data["package"], "releases": data["releases"]}
