"""The value of an expression of a script. Its calls are handed on in the order of the text."""

from __future__ import annotations

import ast
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from ..translation.arguments import tables
from .operations import LONGEST_TEXT, calculate, choose, compare, item, truth
from .values import (
    DTYPES,
    UNKNOWN,
    Arguments,
    Imported,
    Scope,
    ScriptClass,
    ScriptFunction,
    Thing,
    is_thing,
)

BUILTINS = tuple(tables(__file__)["builtins"])


class Expressions(ABC):
    """Evaluates expressions; `call` and `attribute` are those of the reader below it."""

    items: dict[int, tuple[Any, dict[str, int]]]  # dictionaries, and the lines of their keys

    def item_lines(self, data: Any) -> dict[str, int]:
        """The lines on which the keys of a dictionary were set."""
        return self.items.setdefault(id(data), (data, {}))[1]

    @abstractmethod
    def call(self, node: ast.Call, scope: Scope) -> Any:
        """The value of a call."""

    @abstractmethod
    def attribute(self, base: Any, name: str) -> Any:
        """The value of an attribute."""

    @abstractmethod
    def length(self, node: ast.AST | None, scope: Scope) -> None:
        """Note a name that a sequence is cut by."""

    def value(self, node: ast.AST | None, scope: Scope) -> Any:
        """The value of an expression, or UNKNOWN."""
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            return self._name(node.id, scope)
        if isinstance(node, ast.Call):
            return self.call(node, scope)
        if isinstance(node, ast.Attribute):
            return self.attribute(self.value(node.value, scope), node.attr)
        if isinstance(node, ast.List | ast.Tuple | ast.Set | ast.Dict):
            return self._display(node, scope)
        if isinstance(node, ast.UnaryOp | ast.BinOp | ast.BoolOp | ast.Compare | ast.IfExp):
            return self._operation(node, scope)
        return self._other(node, scope)

    def _name(self, name: str, scope: Scope) -> Any:
        found = scope.get(name)
        if found is UNKNOWN and name in BUILTINS:
            return Imported(f"builtins.{name}")
        return found

    def _other(self, node: ast.AST | None, scope: Scope) -> Any:
        if isinstance(node, ast.Subscript):
            return self._subscript(node, scope)
        if isinstance(node, ast.JoinedStr):
            return self._text(node, scope)
        if isinstance(node, ast.Lambda):
            return ScriptFunction(node, scope)
        if isinstance(node, ast.Starred | ast.Await | ast.YieldFrom | ast.Yield):
            return self.value(node.value, scope)
        if isinstance(node, ast.NamedExpr):
            found = self.value(node.value, scope)
            scope.put(node.target.id, found)
            return found
        if isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp):
            return self._comprehension(node, scope)
        return UNKNOWN

    def _display(self, node: ast.List | ast.Tuple | ast.Set | ast.Dict, scope: Scope) -> Any:
        """A list or a dictionary; an unknown part of it stays unknown."""
        if isinstance(node, ast.Dict):
            pairs: dict[Any, Any] = {}
            for key, value in zip(node.keys, node.values, strict=True):
                word, found = self.value(key, scope), self.value(value, scope)
                if key is None and isinstance(found, Mapping):
                    pairs |= found
                    self.item_lines(pairs).update(self.item_lines(found))
                elif isinstance(word, str | int):
                    pairs[word] = found
                    self.item_lines(pairs)[str(word)] = value.lineno
                else:
                    return UNKNOWN
            return pairs
        values: list[Any] = []
        for one in node.elts:
            found = self.value(one, scope)
            if isinstance(one, ast.Starred):
                if not isinstance(found, list | tuple):
                    return UNKNOWN
                values += found
            else:
                values.append(found)
        return tuple(values) if isinstance(node, ast.Tuple) else values

    def _operation(self, node: ast.AST, scope: Scope) -> Any:
        """Signs, `not`, comparisons, choices and arithmetic."""
        if isinstance(node, ast.IfExp):
            test = self.value(node.test, scope)
            if test is not UNKNOWN:
                return self.value(node.body if truth(test) else node.orelse, scope)
            return merged(self.value(node.body, scope), self.value(node.orelse, scope))
        if isinstance(node, ast.BoolOp):
            stops = isinstance(node.op, ast.Or)
            values = []
            for one in node.values:
                values.append(self.value(one, scope))
                if values[-1] is not UNKNOWN and truth(values[-1]) == stops:
                    break
            return choose(values, stops=stops)
        if isinstance(node, ast.UnaryOp):
            value = self.value(node.operand, scope)
            if value is UNKNOWN or isinstance(node.op, ast.Not):
                return UNKNOWN if value is UNKNOWN else not truth(value)
            number = isinstance(value, int | float) and isinstance(node.op, ast.USub)
            return -value if number else UNKNOWN
        if isinstance(node, ast.Compare):
            sides = [self.value(one, scope) for one in (node.left, *node.comparators)]
            results = map(compare, node.ops, sides, sides[1:])
            return choose(list(results), stops=False)
        assert isinstance(node, ast.BinOp)
        left, right = self.value(node.left, scope), self.value(node.right, scope)
        if isinstance(node.op, ast.FloorDiv | ast.Add):  # texts are cut into blocks
            self.length(node.right, scope)
        for one in (left, right):
            if is_thing(one, "output"):
                return one  # a loss over the number of micro-batches
        return calculate(node.op, left, right)

    def _subscript(self, node: ast.Subscript, scope: Scope) -> Any:
        value = self.value(node.value, scope)
        key = self.value(node.slice, scope)
        if isinstance(value, Thing):
            if is_thing(value, "namespace", "instance") and isinstance(key, str):
                return value.values.get(key, UNKNOWN)
            if value.kind in ("part", "data", "output"):
                return value
            return self.attribute(value, "[]") if value.kind == "model" else UNKNOWN
        if isinstance(value, Imported):
            return self.attribute(value, key) if isinstance(key, str) else value
        if isinstance(node.slice, ast.Slice):
            self.length(node.slice.upper, scope)
        if isinstance(node.slice, ast.Slice) and isinstance(value, list | tuple | str):
            ends = (node.slice.lower, node.slice.upper, node.slice.step)
            found = [None if one is None else self.value(one, scope) for one in ends]
            known = all(one is None or (isinstance(one, int) and one != 0) for one in found[2:])
            if known and all(one is None or isinstance(one, int) for one in found):
                return value[slice(*found)]
            return UNKNOWN
        return item(value, key)

    def _text(self, node: ast.JoinedStr, scope: Scope) -> Any:
        text = ""
        for one in node.values:
            found = self.value(one.value if isinstance(one, ast.FormattedValue) else one, scope)
            if not isinstance(found, str | int | float):
                return UNKNOWN
            text += str(found)
        return text if len(text) < LONGEST_TEXT else UNKNOWN

    def _comprehension(self, node: Any, scope: Scope) -> Any:
        """The element for each item of a known list, else once; parts of a model stay so."""
        inner = Scope(parent=scope)
        source = self.value(node.generators[0].iter, inner)
        small = isinstance(source, list | tuple) and len(source) <= 64
        known = small and len(node.generators) == 1 and not isinstance(node, ast.DictComp)
        results = []
        for one in source if known else [element(source)]:
            bind(node.generators[0].target, one, inner)
            for other in node.generators[1:]:
                bind(other.target, element(self.value(other.iter, inner)), inner)
            tests = [self.value(test, inner) for two in node.generators for test in two.ifs]
            if known and any(test is not UNKNOWN and not truth(test) for test in tests):
                continue
            known = known and UNKNOWN not in tests
            made = node.value if isinstance(node, ast.DictComp) else node.elt
            results.append(self.value(made, inner))
        if known:
            return results
        parts = [one for one in results if isinstance(one, Thing)]
        return parts[0] if parts else UNKNOWN


def element(source: Any) -> Any:
    """One item of a value that is gone through: a part of a model, an example of data."""
    if is_thing(source, "part", "data", "loader"):
        return source
    if is_thing(source, "model"):
        return Thing(kind="part", name=f"{source.name} part", model=source, line=source.line)
    return UNKNOWN


def bind(target: ast.AST, value: Any, scope: Scope) -> None:
    """Give names of a target their values."""
    if isinstance(target, ast.Name):
        scope.put(target.id, value)
    elif isinstance(target, ast.Starred):
        bind(target.value, UNKNOWN, scope)
    elif isinstance(target, ast.Tuple | ast.List):
        for one, each in zip(target.elts, unpacked(value, len(target.elts)), strict=True):
            bind(one, each, scope)


def unpacked(value: Any, count: int) -> list[Any]:
    """The parts of a value that is given to several names."""
    if isinstance(value, list | tuple) and len(value) == count:
        return list(value)
    return [value if is_thing(value, "part", "data") else UNKNOWN] * count


def merged(one: Any, other: Any) -> Any:
    """The value behind a branch that may be taken or not: an object that was made stays."""
    if one is other:
        return one
    for first in (one, other):
        if isinstance(first, Thing | ScriptFunction | ScriptClass | Imported):
            return first
    plain = isinstance(one, list | tuple | dict | str | int | float)
    return one if plain and type(one) is type(other) and one == other else UNKNOWN


def arguments_of(reader: Expressions, node: ast.Call, scope: Scope, text: str) -> Arguments:
    """The arguments of a call, with the lines on which they stand."""
    found = Arguments(line=node.lineno, text=text)
    for one in node.args:
        value = reader.value(one, scope)
        if isinstance(one, ast.Starred):
            if isinstance(value, list | tuple):
                found.positional += value
                found.places += [one.lineno] * len(value)
            else:
                found.is_open = True
        else:
            found.positional.append(value)
            found.places.append(one.lineno)
    for keyword in node.keywords:
        value = reader.value(keyword.value, scope)
        if keyword.arg is not None:
            found.named[keyword.arg] = value
            found.lines[keyword.arg] = keyword.value.lineno
        elif isinstance(value, Mapping):
            known = {str(key): one for key, one in value.items()}
            found.named |= {key: one for key, one in known.items() if key not in found.named}
            found.lines |= dict.fromkeys(known, keyword.value.lineno) | reader.item_lines(value)
        elif is_thing(value, "namespace", "arguments"):
            found.named |= value.values
        else:
            found.is_open = True
    return found


def is_dtype(path: str) -> bool:
    """Whether a name of torch is a dtype."""
    return path.startswith("torch.") and path.removeprefix("torch.") in DTYPES


def last_name(node: ast.AST) -> str:
    """The last part of a name."""
    return str(getattr(node, "attr", getattr(node, "id", "")))
