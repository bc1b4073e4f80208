"""`python -m maintenance.releases [TABLE ...]`: write the lock files of tables of arguments.

A release that a lock has is not read again, unless --again is given or --release names it.
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from . import lock
from .index import Files, Release, ReleaseError, TaggedFiles, releases, tagged, version_key
from .read import read
from .requirements import requirements

SETTINGS: dict[str, dict[str, Any]] = tomllib.loads(
    (Path(__file__).parent / "tables.toml").read_text("utf-8")
)
AT_ONCE = 6
KINDS = (
    *("classes", "nested", "parsers", "functions", "assigned", "variables", "constants", "yaml"),
    *("clap", "llama_cpp", "settings", "go_structs", "go_flags", "go_variables"),
)  # of what is read


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the locks; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m maintenance.releases", description=__doc__)
    parser.add_argument("tables", nargs="*", help="tables, or the first part of their names")
    parser.add_argument("--release", action="append", default=[], help="read this release")
    parser.add_argument("--again", action="store_true", help="read every release anew")
    parser.add_argument(
        "--clone",
        action="append",
        default=[],
        metavar="PACKAGE=PATH",
        help="a clone of the repository of a package that is not on the package index",
    )
    options = parser.parse_args(arguments)
    clones = dict(text.split("=", 1) for text in options.clone)
    chosen = [one for one in SETTINGS if one.startswith(tuple(options.tables or [""]))]
    if not chosen:
        print(f"no table begins with {options.tables}; there are {', '.join(SETTINGS)}")
        return 2
    packages = dict.fromkeys(SETTINGS[one]["package"] for one in chosen)
    for package in packages:
        tables = [one for one in chosen if SETTINGS[one]["package"] == package]
        tagged_as = SETTINGS[tables[0]].get("tags")
        if tagged_as and package not in clones:
            print(
                f"{package}: not on the package index; --clone {package}=PATH names a clone of it"
            )
            continue
        listed = tagged(clones[package], tagged_as) if tagged_as else releases(package)
        lines = update(package, tables, listed, options.release, options.again)
        print(*lines, sep="\n", flush=True)
    return 0


def update(
    package: str,
    tables: Sequence[str],
    listed: Sequence[Release],
    named: Sequence[str] = (),
    again: bool = False,
) -> list[str]:
    """Write the locks of a package's tables; a line for each, and for what cannot be read."""
    oldest = min((SETTINGS[one]["oldest"] for one in tables), key=version_key)
    wanted = [
        one
        for one in listed
        if version_key(one.version) >= version_key(oldest)
        and (again or one.version in named or not (named or _has(tables, one.version)))
    ]

    settings = {table: {**SETTINGS[table], "known": lock.names_in(table)} for table in tables}

    def one(release: Release) -> tuple[Release, dict[str, Any], str]:
        try:
            files = Files(release) if release.size else TaggedFiles(release)
            chosen = {t: settings[t] for t in tables if _in(t, release)}
            found = {
                t: (*read(files, row), requirements(files, row.get("requires", ())))
                for t, row in chosen.items()
            }
            return release, found, ""
        except (ReleaseError, OSError, SyntaxError) as error:
            return release, {}, f"{package} {release.version} cannot be read: {error}"

    with ThreadPoolExecutor(AT_ONCE) as pool:
        results = list(pool.map(one, wanted))
    lines = [problem for _, _, problem in results if problem]
    for table in tables:
        lines.append(_write(table, results, again))
    return lines


def _in(table: str, release: Release) -> bool:
    return version_key(release.version) >= version_key(SETTINGS[table]["oldest"])


def _has(tables: Sequence[str], version: str) -> bool:
    """Whether all locks know a release: they have it, or were written when it was there."""
    return all(version in lock.load(table).get("releases", {}) for table in tables)


def _write(table: str, results: Sequence[Any], again: bool) -> str:
    """Write one lock anew, with what was read; the line that says so."""
    old = {} if again else lock.load(table)
    arguments, bases, dates = lock.states(old), lock.bases_at(old), dict(old.get("releases", {}))
    requires = lock.requires_at(old)
    for release, found, _ in results:
        if table in found and found[table][0]:
            version = release.version
            arguments[version], bases[version], requires[version] = found[table]
            dates[version] = release.date
    settings = SETTINGS[table]
    if settings.get("changes"):
        arguments = lock.changes(arguments)
        dates = {release: dates[release] for release in arguments}
    made = lock.made(settings["package"], _reads(settings), dates, arguments, bases, requires)
    path = lock.path_of(table)
    path.write_text(lock.text(made), encoding="utf-8")
    order = list(made["releases"])
    ends = f"{order[0]} to {order[-1]}" if order else "none"
    names = made["arguments"]
    spans = sum(map(len, names.values()))
    return (
        f"{table}: {len(order)} releases ({ends}), {len(names)} names, {spans} spans, "
        f"{path.stat().st_size:,} bytes"
    )


def _reads(settings: dict[str, Any]) -> list[str]:
    return [one for kind in KINDS for one in settings.get(kind, ())]


if __name__ == "__main__":
    sys.exit(main())
