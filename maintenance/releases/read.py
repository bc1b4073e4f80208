"""Reads the arguments of one table at one release."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Any

from .options import Arguments, Reader, switches, written
from .source import Binding, Place, Source, Texts

# How fields become options of a command.
COMMANDS = {"HfArgumentParser": switches, "argparse": written}


def read(files: Texts, settings: Mapping[str, Any]) -> tuple[Arguments, list[str]]:
    """The arguments of a table, and the tables that it inherits from."""
    source = Source(files)
    reader = Reader(source, settings.get("bases", {}))
    found: Arguments = {}
    for one in settings.get("classes", ()):
        prefix = settings.get("prefix", {}).get(one, "")
        for place in places(source, one):
            if isinstance(place.node, ast.ClassDef):
                found |= {f"{prefix}{k}": v for k, v in reader.fields(place).items()}
    if command := settings.get("command"):
        found = {name: COMMANDS[command](row) for name, row in found.items()}
    fields: Arguments = dict(found)
    for one in settings.get("fields", ()):
        for place in places(source, one):
            if isinstance(place.node, ast.ClassDef):
                fields |= reader.fields(place, every=True)
    for one in settings.get("parsers", ()):
        for place in places(source, one):
            found = reader.parser(place, found, fields)
    for one in settings.get("functions", ()):
        for place in places(source, one):
            found |= reader.parameters(place)
    for pattern in settings.get("constants", ()):
        for path in source.matching(pattern):
            found |= reader.constants(path)
    return found, list(dict.fromkeys(reader.bases))


def places(source: Source, one: str) -> Iterator[Place]:
    """The definitions that `file::name` means; `*` means all classes of a file."""
    pattern, _, name = one.partition("::")
    for path in source.matching(pattern):
        if name == "*":
            for node in ast.parse(source.files.text(path)).body:
                if isinstance(node, ast.ClassDef):
                    yield Place(path, (Binding(node),))
            continue
        first, _, method = name.partition(".")
        bindings = source.names(path).get(first, [])
        own = [b for b in bindings if not isinstance(b.node, ast.Import | ast.ImportFrom)]
        classes = [b for b in own if isinstance(b.node, ast.ClassDef)]
        if not own or (method and not classes):
            continue
        place = Place(path, tuple(classes or own))
        if method:
            found = source.attribute(place, method)
            if found:
                # `cls` in an inherited method is the class that was named
                owner = place.node if isinstance(place.node, ast.ClassDef) else None
                yield Place(found.path, found.bindings, owner)
            continue
        yield place
