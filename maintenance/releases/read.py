"""Reads the arguments of one table at one release."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from typing import Any

from gpu_mem_calculator.runfile.text.yaml_text import parse_yaml

from . import go
from .options import Arguments, Reader, switches, written
from .others import clap, llama_cpp
from .parsers import ParserReader
from .source import Binding, Place, Source, Texts

# How fields become options of a command.
COMMANDS = {"HfArgumentParser": switches, "argparse": written}


def read(files: Texts, settings: Mapping[str, Any]) -> tuple[Arguments, list[str]]:
    """The arguments of a table, and the tables that it inherits from."""
    source = Source(files)
    reader = Reader(source, settings.get("bases", {}))
    found: Arguments = {}
    for one in settings.get("classes", ()):
        for place in _classes(source, one):
            found |= _prefixed(settings, one, reader.fields(place))
    for one in settings.get("nested", ()):
        for place in _classes(source, one):
            found |= _prefixed(settings, one, reader.nested(place))
    if command := settings.get("command"):
        found = {name: COMMANDS[command](row) for name, row in found.items()}
    fields: Arguments = dict(found)
    for one in settings.get("fields", ()):
        for place in _classes(source, one):
            fields |= reader.fields(place, every=True)
    for one in settings.get("parsers", ()):
        for place in places(source, one):
            found = ParserReader(reader).parser(place, found, fields)
    sections = settings.get("sections", {}) if settings.get("parsers") else {}
    for start, section in sections.items():
        named = {name: f"{section}{name.removeprefix(start)}" for name in found}
        found = {named[n] if n.startswith(start) else n: row for n, row in found.items()}
    for one in settings.get("functions", ()):
        for place in places(source, one):
            found |= reader.parameters(place)
    for one in settings.get("assigned", ()):
        for place in _classes(source, one):
            found |= reader.assigned(place)
    for path in _paths(source, settings, "variables"):
        found |= reader.variables(path)
    for path in _paths(source, settings, "constants"):
        found |= reader.constants(path, settings.get("sections", {}))
    for one in settings.get("clap", ()):
        pattern, _, struct = one.partition("::")
        for path in source.matching(pattern):
            found |= clap(files.text(path), struct)
    header = "".join(files.text(path) for path in _paths(source, settings, "headers"))
    for path in _paths(source, settings, "llama_cpp"):
        found |= llama_cpp(files.text(path), header, settings.get("known", ()))
    for one in settings.get("yaml", ()):
        for path in [path for part in one.split("|") for path in source.matching(part)][:1]:
            found |= _flat(parse_yaml(files.text(path)), "")
    for path in _paths(source, settings, "settings"):
        for name, row in _flat(parse_yaml(files.text(path)), "").items():
            same = found.setdefault(name, row) == row
            found[name] = row if same else {"computed": "a value of each file"}
    for kind, reader_of in (("go_structs", go.fields), ("go_flags", go.flags)):
        for one in settings.get(kind, ()):
            pattern, _, name = one.partition("::")
            for path in source.matching(pattern):
                found |= reader_of(files.text(path), name)
    for path in _paths(source, settings, "go_variables"):
        found |= go.variables(files.text(path))
    for pattern in settings.get("without", ()):
        found = {name: row for name, row in found.items() if not fnmatch(name, pattern)}
    sections = {name.rpartition(".")[0] for name in found}
    found = {name: row for name, row in found.items() if name not in sections}
    return found, list(dict.fromkeys([*reader.bases, *settings.get("takes", ())]))


def _paths(source: Source, settings: Mapping[str, Any], kind: str) -> list[str]:
    return [path for pattern in settings.get(kind, ()) for path in source.matching(pattern)]


def _prefixed(settings: Mapping[str, Any], one: str, rows: Arguments) -> Arguments:
    """Fields with what stands in front of those of their class."""
    prefix = settings.get("prefix", {}).get(one.partition("::")[2], "")
    return {f"{prefix}{name}": row for name, row in rows.items()}


def _classes(source: Source, one: str) -> Iterator[Place]:
    return (place for place in places(source, one) if isinstance(place.node, ast.ClassDef))


def _flat(data: Any, prefix: str) -> Arguments:
    """The keys of a file, those of its sections behind dots; `${...}` is another key's value."""
    found: Arguments = {}
    for key, value in data.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and value:
            found |= _flat(value, f"{name}.")
        elif isinstance(value, str) and "${" in value:
            found[name] = {"computed": value}
        elif value == "???":
            found[name] = {"required": True}
        else:
            found[name] = {"default": value}
    return found


def places(source: Source, one: str) -> Iterator[Place]:
    """The definitions that `file::name` means; a `*` stands for any part of a name.

    A file alone means all of its statements, as one function.
    """
    pattern, _, name = one.partition("::")
    for path in source.matching(pattern):
        names = source.names(path)
        if not name:
            nothing = ast.arguments(
                posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[]
            )
            body = ast.parse(source.files.text(path)).body
            yield Place(path, (Binding(ast.FunctionDef("", nothing, body, [])),))
            continue
        if "*" in name:
            for known, bindings in names.items():
                defined = isinstance(bindings[-1].node, ast.ClassDef | ast.FunctionDef)
                if defined and fnmatch(known, name):
                    yield Place(path, tuple(bindings))
            continue
        first, _, method = name.partition(".")
        own = [
            b for b in names.get(first, []) if not isinstance(b.node, ast.Import | ast.ImportFrom)
        ]
        classes = [b for b in own if isinstance(b.node, ast.ClassDef)]
        if not method and own:
            yield Place(path, tuple(classes or own))
        elif method and classes:
            place = Place(path, tuple(classes))
            owner = classes[-1].node
            if (found := source.attribute(place, method)) and isinstance(owner, ast.ClassDef):
                # `cls` in an inherited method is the class that was named
                yield Place(found.path, found.bindings, owner)
