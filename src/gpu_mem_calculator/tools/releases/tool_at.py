"""A tool that starts the trainers and servers of other packages, at the user's releases.

Its own release decides its arguments. The releases of what it starts decide what these do: those
that the user has, else the newest that the tool's release allows.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from ...run.limits import Limit
from ...run.releases import package_name
from ..translation.arguments import REFUSED, ArgumentTable, argument_data, renamed
from ..translation.at_release import INHERITED, absence, at_release, by_names_now
from ..translation.releases import (
    Stated,
    allowed_range,
    arguments_at,
    in_range,
    nearest,
    newest_on,
    order,
    release_lock,
)
from ..translation.tools import TOOLS
from .named import AT, KnownReleases
from .release import Release

if TYPE_CHECKING:
    from ..reading.reading import Reading

SERVERS = ("vllm", "sglang")
BELOW = ("transformers", "trl", "torch", *SERVERS)  # packages that tools start others' parts of


class ToolAt(Struct, frozen=True):
    """A tool at a release; as it was read where nothing says one.

    - `path`: its table of arguments; `release`: the one of its lock that the user has, else the
      modelled one
    - `releases`: of the tool and of the packages below it, where somebody says one of them
    """

    path: str
    release: str
    releases: Mapping[str, Release] = {}

    @property
    def package(self) -> str:
        """The tool's package."""
        return package_name(release_lock(self.path).package)

    @property
    def is_other(self) -> bool:
        """Whether somebody says the tool's own release."""
        return self.package in self.releases

    def version(self, read: str) -> str:
        """The release as its answers name it; `read` where nobody says one."""
        return self.releases[self.package].version if self.is_other else read

    def before(self, version: str) -> bool:
        """Whether the tool's release is older than another; False where nobody says one."""
        return self.is_other and order(self.release) < order(version)

    def table(self, rows: ArgumentTable, path: str = "") -> ArgumentTable:
        """Rows with the defaults of the release, but for those that a person decided; of what is
        modelled with one value alone that value stays.
        """
        found = dict(rows)
        for name, default in self._changed(rows, path or self.path):
            if rows[name].effect != REFUSED:
                found[name] = replace(rows[name], default=default)
        return found

    def unsaid(self, rows: ArgumentTable, given: Container[str]) -> Iterator[Limit]:
        """A limit for each key that is not given, and whose default then was not modelled."""
        for name, default in self._changed(rows, self.path):
            row = rows[name]
            if row.effect == REFUSED and name not in given and (default or row.default):
                yield row.limit(name, default)

    def _changed(self, rows: ArgumentTable, path: str) -> Iterator[tuple[str, Any]]:
        """The defaults of the release that are not those of the one that was read."""
        if not self.releases:
            return
        read, data = _read(path), argument_data(path)
        decided = {*data.get("defaults", ()), *data.get("none", ())}
        for name, argument in by_names_now(path, self._stated(path), rows):
            known = not (argument.computed or argument.required or name in decided)
            if known and argument.default != (read[name].default if name in read else None):
                yield name, argument.default

    @property
    def _title(self) -> str:
        return f"{release_lock(self.path).package} {self.version(self.release)}"

    @property
    def _packages(self) -> dict[str, str]:
        return {**{k: one.version for k, one in self.releases.items()}, self.package: self.release}

    def _stated(self, path: str) -> Mapping[str, Stated]:
        return _stated(path, self.release, tuple(sorted(self._packages.items())))

    def absent(self, names: Iterable[str], path: str = "", prefix: str = "") -> Iterator[str]:
        """A sentence for each key that the release does not have."""
        if not self.is_other:
            return
        path = path or self.path
        there = self._stated(path)
        for name in names:
            why = absence(path, self._packages, there, name)
            if why:
                yield f"{prefix}{name} is not a key of {self._title}: {why}"

    def begin(self, reading: Reading, oldest: str) -> None:
        """Name what is open at the release: what it does with its arguments was read from the
        oldest release on; and releases below that it does not allow.
        """
        title, read = self._title, _release(self.path)
        if self.before(oldest):
            why = f"what it does was read from {oldest} on, and is taken as there"
            reading.limit(title, why)
        elif self.is_other and order(self.release) > order(read):
            reading.assumed.append(f"what {title} does is taken as that of {read}, which was read")
        for name, one in self.releases.items():
            text = allowed_range(self.path, self.release, name) if self.is_other else ""
            if not in_range(one.version, text):
                reading.assumed.append(f"{title} allows {name} {text}, and {one.version} is taken")

    def beside(self, *packages: str) -> dict[str, Any]:
        """The section `releases` of a run that has a tool's trainer or server: of these packages,
        of torch, and of the tool.
        """
        names = (self.package, *packages, "torch")
        given = [self.releases[name] for name in names if name in self.releases]
        told = {one.package: {"release": one.version, "read_from": one.read_from} for one in given}
        return {"releases": told} if told else {}

    def idle(self, reading: Reading) -> list[str]:
        """The packages below that --at names, of a run that none of them changes, and says so."""
        names = [k for k, one in self.releases.items() if k != self.package and one.read_from == AT]
        if names:
            what = f"the release of {' and of '.join(names)} changes nothing that is modelled of it"
            reading.assumed.append(what)
        return names


@cache
def _stated(path: str, release: str, others: tuple[tuple[str, str], ...]) -> Mapping[str, Stated]:
    return arguments_at(path, nearest(path, release), dict(others))


@cache
def _read(path: str) -> Mapping[str, Stated]:
    """The arguments at the releases that are modelled, by their names now."""
    return arguments_at(path, _release(path), {name: _release(t) for name, t in INHERITED.items()})


def _release(path: str) -> str:
    """The release that a table has."""
    found: str = argument_data(path)["release"]
    return found


def below(run: Mapping[str, Any]) -> list[str]:
    """The packages whose trainer a run has."""
    tool = str((run.get("program") or {}).get("tool", ""))
    return ["trl", "transformers"] if tool.startswith("trl.") else ["transformers"] if tool else []


def by_names_at(reading: Reading, at: ToolAt) -> None:
    """Write the arguments of the trainer that a tool starts as the trainer's release calls them;
    those that it does not have are left out, and named.
    """
    program = reading.run.get("program") or {}
    tool = TOOLS.get(str(program.get("tool")))
    package = package_name(tool.package) if tool else ""
    if tool is None or package not in at.releases or "args" not in program:
        return
    versions = {name: one.version for name, one in at.releases.items()}
    there = at_release(tool.arguments, versions[package], versions)
    if there is None:
        return
    names, args = renamed(tool.arguments), program["args"]
    for name in list(args):
        if not absence(tool.arguments, there.packages, there.names, name):
            continue
        same = [old for old in names if names[old] == name and old in there.names]
        value = args.pop(name)
        if same:
            args[same[0]] = value
        else:
            why = f"{package} {there.release} has no {name}, and what is done without it is open"
            reading.limit(f"{name}={value}", why)


def tool_at(path: str, known: KnownReleases | None) -> ToolAt:
    """A tool at the releases that are known; `path` is that of its table, which has a lock."""
    if known is None:
        return ToolAt(path, _release(path))
    lock, given = release_lock(path), known.all
    package = package_name(lock.package)
    releases = {name: given[name] for name in BELOW if name in given}
    own = given.get(package)
    if own is None and known.named.day:
        day = known.named.day
        own = Release(package, newest_on(package, day), f"the newest on {day}")
    if own is None:
        return ToolAt(path, _release(path), releases)
    release = nearest(path, own.version)
    day = known.named.day or lock.releases[release]
    for name in BELOW:
        newest = newest_on(name, day, allowed_range(path, release, name))
        if name not in releases and name in lock.requires and newest:
            releases[name] = Release(name, newest, f"the newest that {lock.package} allows")
    return ToolAt(path, release, {package: own, **releases})
