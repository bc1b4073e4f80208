"""What was read of each framework, as digests: schemas, cited definitions, cited files.

snapshot.json holds no code. It is written from the versions of the table and from the citations
in our source; `make drift` then needs only the newest release.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from gpu_mem_calculator.ledger.frameworks import Framework
from gpu_mem_calculator.models.families import families

from .citations import Citation
from .fields import Fields, fields
from .trees import Tree

HERE = Path(__file__).parent
TARGET = HERE / "snapshot.json"
Record = dict[str, Any]  # of one framework: version, schemas, cited, files


class Resolved(NamedTuple):
    """The file and the definitions that a citation means; none where it means the whole file."""

    source: str  # our file
    framework: str
    path: str
    names: tuple[str, ...]


@cache
def settings() -> dict[str, dict[str, Any]]:
    """schemas.toml."""
    return tomllib.loads((HERE / "schemas.toml").read_text(encoding="utf-8"))


def schema_places(framework: str) -> dict[str, list[str]]:
    """Each schema of a framework and the places of its fields, `file::name`."""
    row = settings().get(framework, {})
    places: dict[str, list[str]] = dict(row.get("schemas", {}))
    if row.get("families"):
        for family in families():
            name = family.replace("-", "_")
            places[family] = [f"*/models/*/configuration_{name}.py::CLASSES"]
    return places


def schemas(framework: str, tree: Tree) -> dict[str, Fields]:
    """Every schema of a framework that a tree has, with its fields."""
    tables: dict[str, Fields] = {}
    for schema, places in schema_places(framework).items():
        for place in places:
            pattern, _, name = place.partition("::")
            for path in (path for path in tree.texts if fnmatch(path, pattern)):
                tables.setdefault(schema, {}).update(fields(tree.module(path), name))
    return {schema: table for schema, table in tables.items() if table}


def resolve(citation: Citation, trees: Mapping[str, Tree]) -> Resolved | None:
    """What a citation means; None where its framework is not there or has no such file.

    Lines count only at the version that was read; at an older one the names that follow them do.
    After a candidate that cannot be looked at, only one that is named with a version counts.
    """
    unseen = False
    for row, version in citation.candidates:
        tree = trees.get(row.names[0])
        if tree is None or (unseen and not version):
            unseen = True
            continue
        lines = citation.lines if not version or row.is_read(version) else ()
        paths = tree.ending_with(citation.path)
        for path in paths:
            module = tree.module(path)
            names = [name for first, last in lines for name in module.at(first, last)]
            names = names or [name for word in citation.words for name in module.named(word)]
            if names:
                return Resolved(citation.source, row.names[0], path, tuple(dict.fromkeys(names)))
        if paths:
            return Resolved(citation.source, row.names[0], paths[0], ())
    return None


def record(framework: Framework, tree: Tree, resolved: Iterable[Resolved]) -> Record:
    """What is kept of a framework at the version that was read.

    - schemas: the fields of each
    - cited: the digest of each cited definition, and our files that cite it
    - files: those that are cited as a whole, and our files that cite them
    """
    name = framework.names[0]
    cited: dict[str, list[str]] = {}
    whole: dict[str, list[str]] = {}
    for one in sorted(set(resolved)):
        if one.framework == name:
            definitions = tree.module(one.path).definitions
            for defined in one.names:
                key = f"{one.path}::{defined}"
                cited.setdefault(key, [definitions[defined].digest]).append(one.source)
            if not one.names:
                whole.setdefault(one.path, []).append(one.source)
    return {
        "version": framework.version,
        "schemas": schemas(name, tree),
        "cited": {key: list(dict.fromkeys(row)) for key, row in cited.items()},
        "files": whole,
    }


def load(path: Path = TARGET) -> dict[str, Record]:
    """The records of the snapshot by framework."""
    if not path.exists():
        return {}
    records: dict[str, Record] = json.loads(path.read_text(encoding="utf-8"))
    return records


def save(records: Mapping[str, Record], path: Path = TARGET) -> None:
    """Write the snapshot: a line for each schema, definition and file."""
    lines: list[str] = []
    for name, record in sorted(records.items()):
        parts = []
        for part, value in record.items():
            if isinstance(value, dict):
                rows = [f"   {json.dumps(k)}: {json.dumps(v)}" for k, v in sorted(value.items())]
                parts.append(f"  {json.dumps(part)}: {{\n" + ",\n".join(rows) + "\n  }")
            else:
                parts.append(f"  {json.dumps(part)}: {json.dumps(value)}")
        lines.append(f" {json.dumps(name)}: {{\n" + ",\n".join(parts) + "\n }")
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
