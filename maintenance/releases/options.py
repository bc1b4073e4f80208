"""What a release says of each argument: classes of fields and functions, read from text.

An argument is a mapping of `default` (or `computed`, or `required`), `type`, `choices`, `form` (how
it is written in a command: flag, switch, list, repeated; else with one value) and `flags` (other
names of the option, as they are written).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Any

from .source import Binding, Place, Source, bound
from .values import ComputedError, Kind, Values

Argument = dict[str, Any]
Arguments = dict[str, Argument]
META = {"Arg", "HfArg"}


class Reader:
    """Reads the arguments of one release."""

    def __init__(self, source: Source, stops: Mapping[str, str]) -> None:
        """`stops`: base classes that have a table of their own."""
        self.source, self.values, self.stops = source, Values(source), stops
        self.bases: list[str] = []  # tables of base classes that were met

    def fields(self, place: Place, every: bool = False) -> Arguments:
        """The fields of a class and of its bases, those of other tables left out.

        - every: also those that are no options
        """
        found: Arguments = {}
        for name, base in self.source.bases(place):
            if name in self.stops:
                self.bases.append(self.stops[name])
            elif base and isinstance(base.node, ast.ClassDef) and base.node is not place.node:
                found |= self.fields(base, every)
        assert isinstance(place.node, ast.ClassDef)
        for node in _statements(place.node.body):
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                at = Place(place.path, (Binding(node),), place.node)
                if field := self._field(node, at, every):
                    found[node.target.id] = field
        return found

    def _field(self, node: ast.AnnAssign, at: Place, every: bool) -> Argument | None:
        """A field; None where it is no argument."""
        assert isinstance(node.target, ast.Name)
        if node.target.id.startswith("_") or "ClassVar" in ast.unparse(node.annotation):
            return None
        given = _keywords(node.value)
        meta = self._meta(node.annotation)
        if _is(given.get("init"), False) or (_is(meta.get("no_cli"), True) and not every):
            return None
        kind = self.values.kind(node.annotation, at)
        state = self.values.default(node.value, at)
        argument = _argument(state, kind)
        if "choices" in meta or "choices" in _metadata(given):
            argument |= self.choices(meta.get("choices") or _metadata(given)["choices"], at)
        told = _metadata(given).get("argparse_meta")
        if isinstance(told, ast.Dict):
            pairs = zip(told.keys, told.values, strict=True)
            meta = {str(getattr(key, "value", "")): value for key, value in pairs} | meta
            meta["aliases"] = meta.get("arg_names", ast.List(elts=[]))
            if "default" in meta:
                argument = {k: v for k, v in argument.items() if k not in DEFAULTS}
                argument |= self.values.default(meta["default"], at)
            named = self.plain(meta["dest"], at) if "dest" in meta else None
            argument |= {DEST: named} if named else {}
        aliases = meta.get("aliases") or given.get("aliases") or _metadata(given).get("aliases")
        if flags := [*self._texts(meta.get("cli_name"), at), *self._texts(aliases, at)]:
            argument["flags"] = [one for one in flags if one != flag_of(node.target.id)]
        if "nargs" in meta:
            argument |= form_of_count(self.plain(meta["nargs"], at))
        return argument

    def _meta(self, annotation: ast.expr) -> dict[str, ast.expr]:
        """The keywords of Arg(...) in an annotation."""
        for call in ast.walk(annotation):
            if isinstance(call, ast.Call) and getattr(call.func, "id", "") in META:
                return _keywords(call)
        return {}

    def _texts(self, node: ast.expr | None, at: Place) -> list[str]:
        value = self.plain(node, at) if node else None
        return [value] if isinstance(value, str) else value if isinstance(value, list) else []

    def plain(self, node: ast.expr, at: Place) -> Any:
        """The value of an expression; None where only runs can tell it."""
        try:
            return self.values.value(node, at)
        except ComputedError:
            return None

    def choices(self, node: ast.expr, at: Place) -> Argument:
        """The choices, where they can be computed: lists of plain values."""
        value = self.plain(node, at)
        choices = [one for one in value if one is not None] if isinstance(value, list) else []
        return {"choices": choices} if choices else {}

    def nested(self, place: Place, prefix: str = "", left: int = 5) -> Arguments:
        """The fields of a class; of one that holds a class with fields, also those behind a dot."""
        found: Arguments = {}
        for owner in list(self.source.lineage(place))[::-1]:
            assert isinstance(owner.node, ast.ClassDef)
            for node in _statements(owner.node.body):
                if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
                    continue
                at = Place(owner.path, (Binding(node),), owner.node)
                name = f"{prefix}{node.target.id}"
                inner = self._held(node.annotation, at) if left else None
                if field := self._field(node, at, every=False):
                    found[name] = field
                    found |= self.nested(inner, f"{name}.", left - 1) if inner else {}
        return found

    def _held(self, annotation: ast.expr, at: Place) -> Place | None:
        """The class with fields that an annotation names, alone or beside None."""
        for node in ast.walk(annotation):
            if isinstance(node, ast.Name) and "dict" in self.values.kind(node, at).words:
                place = self.source.dotted(at.path, node)
                if place and isinstance(place.node, ast.ClassDef):
                    return place
        return None

    def variables(self, path: str) -> Arguments:
        """Annotated names in capitals of a file: variables of the environment, with defaults."""
        found: Arguments = {}
        for name, bindings in self.source.names(path).items():
            node = bindings[-1].node
            if isinstance(node, ast.AnnAssign) and name.isupper():
                at = Place(path, (bindings[-1],))
                kind = self.values.kind(node.annotation, at)
                found[name] = _argument(self.values.default(node.value, at), kind)
        return found

    def assigned(self, place: Place) -> Arguments:
        """Names in capitals that a class assigns calls to: the first argument is the default."""
        assert isinstance(place.node, ast.ClassDef)
        found: Arguments = {}
        for name, bindings in bound(place.node.body).items():
            value = getattr(bindings[-1].node, "value", None)
            if name.isupper() and isinstance(value, ast.Call) and value.args:
                at = Place(place.path, (bindings[-1],), place.node)
                type_ = getattr(value.func, "id", "").lower()
                words = tuple(one for one in ("bool", "int", "float", "str") if one in type_)
                found[name] = _argument(self.values.default(value.args[0], at), Kind(words[:1]))
        return found

    def parameters(self, place: Place) -> Arguments:
        """The parameters of a function, without self."""
        node = place.node
        if isinstance(node, ast.ClassDef):
            init = self.source.attribute(place, "__init__")
            return self.parameters(init) if init else {}
        assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        plain = [*node.args.posonlyargs, *node.args.args]
        missing: list[ast.expr | None] = [None] * (len(plain) - len(node.args.defaults))
        given = [*zip(plain, [*missing, *node.args.defaults], strict=True)]
        given += zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
        at = Place(place.path)
        return {
            one.arg: _argument(self.values.default(value, at), self.values.kind(one.annotation, at))
            for one, value in given
            if one.arg not in ("self", "cls")
        }

    def constants(self, path: str, sections: Mapping[str, str]) -> Arguments:
        """Constants of a file that are names of keys, each with the default of that name.

        - sections: of keys, by the beginnings of their constants' names
        """
        ending = "_DEFAULT"
        found: Arguments = {}
        for name in self.source.names(path):
            at = self.source.find(path, name)
            if at is None or not name.isupper() or name.endswith(ending):
                continue
            key = self.plain(ast.Name(name), Place(path))
            if isinstance(key, str) and key.replace("_", "").isalnum():
                default = self.source.find(path, name + ending)
                if default:
                    state = self.values.default(ast.Name(name + ending), Place(path))
                    section = next((v for k, v in sections.items() if name.startswith(k)), "")
                    found[f"{section}{key}"] = _argument(state, Kind(()))
        return found


DEFAULTS = ("default", "computed", "required")
DEST = "dest"  # the name of an argument that is not its field's


def _argument(state: Mapping[str, Any], kind: Kind) -> Argument:
    """An argument of a default and what its annotation allows."""
    argument = {**state, "type": kind.text}
    if kind.choices:
        argument["choices"] = list(kind.choices)
    return argument


def written(row: Argument) -> Argument:
    """A field as the option of a parser that is made of a class."""
    words = set(str(row.get("type", "")).split(" | "))
    if "form" in row:
        return dict(row)
    if words == {"bool", "str", "None"}:
        return {**row, "form": "switch"}
    if "bool" in words:
        return {**row, "form": "flag"}
    return {**row, "form": "list"} if "list" in words else dict(row)


def switches(row: Argument) -> Argument:
    """A field as HfArgumentParser reads it: a bool may stand alone, a list has several words."""
    words = set(str(row.get("type", "")).split(" | "))
    if words - {"None"} == {"bool"}:
        return {**row, "form": "switch"}
    return {**row, "form": "list"} if "list" in words and "form" not in row else row


def form_of_count(count: Any) -> Argument:
    """How an option with `nargs` is written."""
    if count == "?":
        return {"form": "switch"}
    return {"form": "list"} if count in ("+", "*") or isinstance(count, int) else {}


def flag_of(name: str) -> str:
    """The option of an argument."""
    return f"--{name.replace('_', '-')}"


def _keywords(node: ast.expr | None) -> dict[str, ast.expr]:
    calls = node.keywords if isinstance(node, ast.Call) else []
    return {word.arg: word.value for word in calls if word.arg}


def _metadata(given: Mapping[str, ast.expr]) -> dict[str, ast.expr]:
    """The entries of a field's metadata."""
    node = given.get("metadata")
    if not isinstance(node, ast.Dict):
        return {}
    pairs = zip(node.keys, node.values, strict=True)
    return {str(k.value): v for k, v in pairs if isinstance(k, ast.Constant)}


def _is(node: ast.expr | None, value: bool) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a class, also under `if`."""
    for node in body:
        if isinstance(node, ast.If):
            yield from _statements([*node.body, *node.orelse])
        else:
            yield node
