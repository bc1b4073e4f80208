"""`python -m maintenance.drift [FRAMEWORK ...]`: what changed since the source was read.

It compares the newest releases with snapshot.json and writes nothing. `--update` writes the
snapshot anew from the versions of the table.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gpu_mem_calculator.ledger.frameworks import BY_NAME, FRAMEWORKS, Framework

from . import index, snapshot
from .citations import citations, files
from .compare import compare
from .report import Row, report
from .trees import Tree

Sources = Mapping[str, Path]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the report, or write the snapshot; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m maintenance.drift", description=__doc__)
    parser.add_argument("frameworks", nargs="*", help="names of the table; default: all")
    parser.add_argument("--source", action="append", default=[], metavar="NAME=PATH")
    parser.add_argument("--update", action="store_true", help="write snapshot.json anew")
    parser.add_argument("--all", action="store_true", help="print long lists in full")
    options = parser.parse_args(arguments)
    pairs = [text.partition("=")[::2] for text in options.source]
    unknown = [n for n in (*options.frameworks, *(n for n, _ in pairs)) if n.lower() not in BY_NAME]
    missing = [path for _, path in pairs if not Path(path).exists()]
    if unknown or missing:
        known = ", ".join(row.names[0] for row in FRAMEWORKS)
        print(
            f"{unknown[0]!r} is not in the table; it has {known}"
            if unknown
            else f"--source {missing[0]!r}: there is no such wheel or folder",
            file=sys.stderr,
        )
        return 2
    sources = {BY_NAME[name.lower()].names[0]: Path(path) for name, path in pairs}
    rows = [BY_NAME[name.lower()] for name in options.frameworks] or list(FRAMEWORKS)
    with tempfile.TemporaryDirectory() as folder:
        if options.update:
            print(update(rows, sources, Path(folder)))
        else:
            print(drift(rows, sources, Path(folder), options.all))
    return 0


def drift(rows: Sequence[Framework], sources: Sources, folder: Path, wide: bool = False) -> str:
    """The report on frameworks; wheels are downloaded into a folder."""
    records = snapshot.load()

    def line(row: Framework) -> Row:
        return compared(row, records.get(row.names[0]), sources, folder)

    with ThreadPoolExecutor(4) as pool:
        return report(list(pool.map(line, rows)), wide)


def compared(row: Framework, record: snapshot.Record | None, sources: Sources, folder: Path) -> Row:
    """One framework: its newest release against the record, as far as both can be had."""
    name = row.names[0]
    if record and record["version"] != row.version:
        note = f"the snapshot is of {record['version']}; write it anew with --update {name}"
        return Row(name, row.version, "", note=note)
    if record and name in sources:
        drift = compare(name, record, Tree(sources[name]))
        return Row(name, row.version, sources[name].name, drift)
    if not row.package:
        return Row(name, row.version, "", note="not on the package index; look at its repository")
    version = ""
    try:
        release = index.newest(row.package, row.version)
        version = release.version
        if not release.newer:
            return Row(name, row.version, version)
        if not record or snapshot.settings()[name].get("large"):
            why = "its wheels are large" if record else "there is no snapshot of it"
            raise index.ReleaseError(f"{version} is newer; {why}, so nothing is compared")
        subfolder = folder / row.package
        subfolder.mkdir()
        path = index.wheel(row.package, version, release.target, subfolder)
        return Row(name, row.version, version, compare(name, record, Tree(path)))
    except index.ReleaseError as error:
        return Row(name, row.version, version or "?", note=str(error))


def update(rows: Sequence[Framework], sources: Sources, folder: Path) -> str:
    """Write the snapshot of frameworks anew; what cannot be read keeps its record."""
    trees = {row.names[0]: tree for row in rows if (tree := _tree(row, sources, folder))}
    resolved, unresolved = [], []
    for citation in (citation for path in files() for citation in citations(path)):
        if one := snapshot.resolve(citation, trees):
            resolved.append(one)
        elif citation.lines:
            unresolved.append(f"  {citation.source}: {citation.text}")
    records = snapshot.load()
    for row in rows:
        if tree := trees.get(row.names[0]):
            records[row.names[0]] = snapshot.record(row, tree, resolved)
    snapshot.save(records)
    lines = [f"{len(resolved)} citations of {', '.join(trees)}"]
    if skipped := [row.names[0] for row in rows if row.names[0] not in trees]:
        lines.append(f"not read, and left as they are: {', '.join(skipped)}")
    if unresolved:
        lines += ["lines whose file is in none of these:", *unresolved]
    return "\n".join(lines)


def _tree(row: Framework, sources: Sources, folder: Path) -> Tree | None:
    """The source of the version that was read: given, installed, or downloaded."""
    settings = snapshot.settings().get(row.names[0])
    if row.names[0] in sources:
        return Tree(sources[row.names[0]])
    if not settings or not row.package:
        return None
    if place := index.installed(row.package, row.version):
        return Tree(place, settings["folder"])
    if settings.get("large"):
        return None
    try:
        release = index.newest(row.package, row.version)
        return Tree(index.wheel(row.package, row.version, release.target, folder))
    except index.ReleaseError:
        return None


if __name__ == "__main__":
    sys.exit(main())
