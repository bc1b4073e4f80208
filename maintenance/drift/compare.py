"""What differs between the record of a framework and a newer release of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from .definitions import difference
from .fields import Fields
from .snapshot import Record, schemas
from .trees import Tree

COMMON = ("__init__", "__post_init__", "forward", "backward", "step")  # of many classes
SAME, CHANGED, MOVED, GONE = "same", "changed", "moved", "gone"


class FieldChanges(NamedTuple):
    """How the fields of one schema differ; `gone`: the newer release has none of them."""

    schema: str
    added: Fields
    removed: Fields
    defaults: dict[str, tuple[str, str]]
    gone: bool = False


class CodeChange(NamedTuple):
    """What became of a cited definition: where it is now, and statements; `by`: our files."""

    key: str
    kind: str
    place: str = ""
    added: int = 0
    removed: int = 0
    by: tuple[str, ...] = ()


class Drift(NamedTuple):
    """Everything that differs: schemas, cited definitions, cited files that are gone."""

    fields: list[FieldChanges]
    code: list[CodeChange]
    files: dict[str, list[str]]


def compare(framework: str, record: Record, tree: Tree) -> Drift:
    """The record of a framework against the files of a newer release."""
    now = schemas(framework, tree)
    changes = [_fields(name, old, now.get(name)) for name, old in record["schemas"].items()]
    cited = record["cited"].items()
    code = [_definition(key, digest, tree)._replace(by=tuple(by)) for key, (digest, *by) in cited]
    return Drift(
        [c for c in changes if c.gone or c.added or c.removed or c.defaults],
        code,
        {path: by for path, by in record["files"].items() if path not in tree.texts},
    )


def _fields(schema: str, old: Fields, new: Fields | None) -> FieldChanges:
    if new is None:
        return FieldChanges(schema, {}, {}, {}, gone=True)
    return FieldChanges(
        schema,
        {name: new[name] for name in new if name not in old},
        {name: old[name] for name in old if name not in new},
        {n: (old[n], new[n]) for n in old if n in new and old[n] != new[n]},
    )


def _definition(key: str, digest: str, tree: Tree) -> CodeChange:
    """The definition in its place; else the same or a changed one elsewhere; else gone."""
    path, _, name = key.partition("::")
    if path in tree.texts and (now := tree.module(path).definitions.get(name)):
        if now.digest == digest:
            return CodeChange(key, SAME, key)
        return CodeChange(key, CHANGED, key, *difference(digest, now.digest))
    places = list(_elsewhere(path, name, tree, digest))
    moved = next((place for place, other in places if other == digest), "")
    if moved:
        return CodeChange(key, MOVED, moved)
    if places:
        closest = min(places, key=lambda place: sum(difference(digest, place[1])))
        return CodeChange(key, CHANGED, closest[0], *difference(digest, closest[1]))
    return CodeChange(key, GONE)


def _elsewhere(path: str, name: str, tree: Tree, digest: str) -> Iterator[tuple[str, str]]:
    """Places where a definition may be now, with digests: renamed in its file, or in another."""
    if path in tree.texts:
        for other, definition in tree.module(path).definitions.items():
            if definition.digest == digest:
                yield f"{path}::{other}", digest
    first, last = name.split(".")[0], name.split(".")[-1]
    sought = first if last in COMMON else last
    bare = re.escape(_bare(sought))
    defines = re.compile(rf"^\s*(?:async )?(?:def|class) _*{bare}\b", re.MULTILINE)
    for other_path, text in tree.texts.items():
        if other_path != path and _bare(sought) in text and defines.search(text):
            for other, definition in tree.module(other_path).definitions.items():
                if other == name or (sought == last and _bare(other) == _bare(name)):
                    yield f"{other_path}::{other}", definition.digest


def _bare(name: str) -> str:
    """The last part of a qualified name without its first underscores."""
    return name.split(".")[-1].lstrip("_")
