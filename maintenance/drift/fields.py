"""The fields of argument classes, configuration schemas and parsers, with their defaults."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .definitions import Module

Fields = dict[str, str]  # the default of each field as code; REQUIRED where it has none
REQUIRED = "required"
LONGEST = 60  # characters of a default that are compared
_FACTORIES = {"field", "Field", "interval"}  # dataclasses, pydantic, transformers' strict classes


def fields(module: Module, name: str) -> Fields:
    """The fields of a definition, or of CLASSES, CONSTANTS or FLAGS: all that a file has.

    A class has annotated attributes, parameters of its __init__, and names that it takes from
    **kwargs; a function has parameters; a parser has the flags that are added to it.
    """
    nodes = {key: definition.node for key, definition in module.definitions.items()}
    if name == "CONSTANTS":
        given = {key: getattr(node, "value", None) for key, node in nodes.items() if key.isupper()}
        return {key: _default(value) for key, value in given.items()}
    if name == "FLAGS":
        return dict(flag for key, node in nodes.items() if "." not in key for flag in _flags(node))
    if name == "CLASSES":
        return dict(field for node in nodes.values() for field in _of_class(node))
    node = nodes.get(name)
    return dict([*_of_class(node), *_parameters(node)])


def _of_class(node: ast.stmt | None) -> Iterator[tuple[str, str]]:
    """Fields of a class; none of anything else."""
    if isinstance(node, ast.ClassDef):
        yield from _attributes(node)
        yield from _constructor(node)


def _attributes(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """Annotated attributes with their defaults; others are no fields."""
    for statement in node.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            yield statement.target.id, _default(statement.value)


def _constructor(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """Parameters of __init__, and what it takes from **kwargs."""
    for statement in node.body:
        if isinstance(statement, ast.FunctionDef) and statement.name == "__init__":
            yield from _parameters(statement)
            for name, call in _calls(statement, "pop"):
                yield name, _default([*call.args, None][1])


def _parameters(node: ast.stmt | None) -> Iterator[tuple[str, str]]:
    """Parameters of a function with their defaults, without self; none of anything else."""
    if not isinstance(node, ast.FunctionDef):
        return
    plain = [*node.args.posonlyargs, *node.args.args]
    missing: list[ast.expr | None] = [None] * (len(plain) - len(node.args.defaults))
    given = [*zip(plain, [*missing, *node.args.defaults], strict=True)]
    given += zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
    for parameter, value in given:
        if parameter.arg != "self":
            yield parameter.arg, _default(value)


def _flags(node: ast.AST) -> Iterator[tuple[str, str]]:
    """The flags that a parser gets by add_argument, with their defaults or their actions."""
    for name, call in _calls(node, "add_argument"):
        given = {word.arg: word.value for word in call.keywords}
        action = given.get("action")
        if "default" in given:
            yield name, _default(given["default"])
        else:
            yield name, str(action.value) if isinstance(action, ast.Constant) else "None"


def _calls(node: ast.AST, method: str) -> Iterator[tuple[str, ast.Call]]:
    """The calls of a method whose first argument is a text, with that text."""
    for call in ast.walk(node):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
            first = call.args[0] if call.args else None
            if call.func.attr == method and isinstance(first, ast.Constant):
                yield str(first.value), call


def _default(value: ast.expr | None) -> str:
    """A default as code: that inside field(default=...), Field(...) or a validated field."""
    if value is None:
        return REQUIRED
    if isinstance(value, ast.Call):
        inner = value.func.func if isinstance(value.func, ast.Call) else value.func
        if getattr(inner, "id", getattr(inner, "attr", "")) in _FACTORIES:
            given = {word.arg: word.value for word in value.keywords}
            first = value.args[0] if value.args else None
            chosen = given.get("default", given.get("default_factory", first))
            return REQUIRED if chosen is None else _default(chosen)
    text = ast.unparse(value)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
