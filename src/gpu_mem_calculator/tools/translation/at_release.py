"""A tool's arguments at the release that a program names: which there were, and their defaults.

The names and effects are those of the release that was read: a name of another release is put under
the name that it has there.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from functools import cache
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ...run.releases import package_name
from .arguments import ArgumentTable, argument_table, renamed
from .releases import (
    Stated,
    arguments_at,
    has_lock,
    nearest,
    order,
    owner_of,
    release_lock,
    release_of,
    span_of,
)

# Packages whose arguments others inherit, with a table that has their lock.
INHERITED = {"transformers": "transformers/arguments"}
# The first day of torch 2.8, from which transformers' default optimizer is fused
# (transformers 4.54.0 training_args.py default_optim).
FUSED_FROM = "2025-08-06"
FUSED = ("optim", "adamw_torch_fused", "adamw_torch")


class AtRelease(Struct, frozen=True):
    """A tool at a release: its arguments by the names that they have in the release that was read,
    and the releases of all packages that decide, by package.

    `names` are those that the release has. What it does not have keeps the default of the release
    that was read, which is what happens without it.
    """

    path: str
    release: str
    table: ArgumentTable
    names: frozenset[str]
    packages: Mapping[str, str]


def at_release(path: str, version: str, others: Mapping[str, str]) -> AtRelease | None:
    """A table of arguments at a release; None where no lock has the tool's releases.

    others: releases of other packages that the user has; what is left out is the newest on the day
    of the release
    """
    if not has_lock(path):
        return None
    release, lock = nearest(path, version), release_lock(path)
    day = lock.releases[release]
    packages = {name: release_of(table, day) for name, table in INHERITED.items()}
    packages = {**packages, **others, lock.package: release}
    table, names = _table(path, release, tuple(sorted(packages.items())))
    return AtRelease(path, release, table, names, packages)


@cache
def _table(
    path: str, release: str, packages: tuple[tuple[str, str], ...]
) -> tuple[ArgumentTable, frozenset[str]]:
    """The rows of the arguments with the defaults of a release, and the names that it has."""
    rows, stated = dict(argument_table(path)), arguments_at(path, release, dict(packages))
    for now, argument in by_names_now(path, stated, rows):
        default = _default(now, argument, rows[now].default, dict(packages), path, release)
        rows[now] = replace(rows[now], default=default)
    return rows, frozenset(stated)


def by_names_now(
    path: str, stated: Mapping[str, Stated], rows: Container[str]
) -> Iterator[tuple[str, Stated]]:
    """The arguments of a release that a table has, by the names in it."""
    names = renamed(path)
    for name, argument in stated.items():
        now = names.get(name, name)
        if now in rows and (name == now or now not in stated):
            yield now, argument


def _default(
    name: str, stated: Stated, read: Any, packages: Mapping[str, str], path: str, release: str
) -> Any:
    """The default of an argument; of one that code computes, what it is in the release that was
    read, but for the optimizer, which torch's release decides.
    """
    if name == FUSED[0] and stated.computed:
        torch = packages.get("torch")
        day = release_lock(path).releases[release]
        fused = order(torch) >= order("2.8") if torch else day >= FUSED_FROM
        return FUSED[1] if fused else FUSED[2]
    return read if stated.computed or stated.required else stated.default


def arguments_by_new_names(
    at: AtRelease, title: str, given: Mapping[str, Any]
) -> tuple[dict[str, Any], list[str], list[str]]:
    """Arguments under the names of the release that was read; a note on each that had another one,
    also where it is given by its new name, as readers of scripts and commands do; a problem for
    each that the release does not have.
    """
    names, found = renamed(at.path), {}
    notes: list[str] = []
    problems: list[str] = []
    for name, value in given.items():
        now = names.get(name, name)
        same = named_there(at.path, at.names, name)
        if same and now == name:
            notes.append(f"{name} is {same} in {title} {at.release}")
        else:
            problems += _absent(at, title, name)
        notes += [f"{name} is called {now} in newer releases of {title}"] if now != name else []
        found[now] = value
    return found, notes, problems


def _absent(at: AtRelease, title: str, name: str) -> Iterator[str]:
    """A sentence for an argument that came later, or had gone."""
    why = absence(at.path, at.packages, at.names, name)
    if why:
        yield f"program.args.{name} is not an argument of {title} {at.release}: {why}"


def absence(path: str, packages: Mapping[str, str], there: Container[str], name: str) -> str:
    """Since when an argument is not there, and what is in its place; empty where it is there.

    - packages: releases by package, of the tool and of what it inherits from
    """
    owner = owner_of(path, name)
    if name in there or not owner:  # what no release has is a key of a command, or unknown
        return ""
    first, gone = span_of(owner, name)
    package = package_name(release_lock(owner).package)
    title, same = "" if owner == path else f"{package} ", named_there(path, there, name)
    instead = f"; it is {same} there" if same else ""
    later = not gone or order(first) > order(packages.get(package, first))
    return f"it {'came' if later else 'went'} with {title}{first if later else gone}{instead}"


def named_there(path: str, there: Container[str], name: str) -> str:
    """What an argument is called where it has another name; empty where it has none, or its own."""
    if name in there:
        return ""
    names = renamed(path)
    now = names.get(name, name)
    return next((one for one in (now, *names) if names.get(one, one) == now and one in there), "")


def before(packages: Mapping[str, str], package: str, version: str) -> bool:
    """Whether the user's release of a package is older than a version; False where not known."""
    given = packages.get(package)
    return given is not None and order(given) < order(version)
