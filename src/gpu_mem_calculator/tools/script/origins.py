"""Where the values come from that a line uses: constants, options and fields by their names.

A line that sets a name is accounted for as the line that uses it is.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Mapping

from ..translation.arguments import tables
from .expressions import last_name

# Calls that only pass a value on, or declare an option.
PASSING = tuple(tables(__file__)["passing"])


def origins(tree: ast.AST, lines: Mapping[int, str]) -> dict[int, tuple[int, str]]:
    """Lines that set a name which an accounted line uses: by line, the line that uses it and the
    name. Lines that are accounted for themselves are left out.
    """
    setting, using = _set_names(tree), _used_names(tree)
    found: dict[int, tuple[int, str]] = {}
    waiting = list(lines)
    while waiting:
        line = waiting.pop()
        for name in using.get(line, ()):
            for place in setting.get(name, ()):
                if place not in lines and place not in found and place != line:
                    found[place] = (line, name)
                    waiting.append(place)
    return found


def declared_lines(tree: ast.AST) -> dict[str, set[int]]:
    """The lines of each option of argparse and each field of a class."""
    found: dict[str, set[int]] = defaultdict(set)
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for one in node.body:
                if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
                    found[one.target.id] |= _lines(one)
        elif isinstance(node, ast.Call):
            for name in _option_names(node):
                found[name] |= _lines(node)
    return found


def _option_names(node: ast.Call) -> list[str]:
    """The names of an option that a call declares; none where it declares no option."""
    if last_name(node.func) not in ("add_argument", "option"):
        return []
    return [word.lstrip("-").replace("-", "_") for word in _texts(node)]


def _texts(node: ast.Call) -> list[str]:
    """The texts among a call's arguments."""
    words = [one.value for one in node.args if isinstance(one, ast.Constant)]
    return [one for one in words if isinstance(one, str)]


def _set_names(tree: ast.AST) -> Mapping[str, set[int]]:
    """For each name, the lines that give it a plain value."""
    found: dict[str, set[int]] = defaultdict(set)
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            if _is_plain(node.value):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for target in targets:
                    for name in _names(target):
                        found[name] |= _lines(node)
        elif isinstance(node, ast.Call):
            for name in _option_names(node):
                found[name] |= _lines(node)
        elif isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(key.value, str):
                    found[key.value] |= {key.lineno, value.lineno}
        elif isinstance(node, ast.arguments):
            _set_parameters(node, found)
    return found


def _set_parameters(node: ast.arguments, found: Mapping[str, set[int]]) -> None:
    """Parameters with a default, and those without: their callers give the value."""
    every = [*node.posonlyargs, *node.args]
    defaults = zip(reversed(every), reversed(node.defaults), strict=False)
    pairs = [*defaults, *zip(node.kwonlyargs, node.kw_defaults, strict=True)]
    for one, default in pairs:
        if default is not None:
            found[one.arg].update((one.lineno, default.lineno))


def _used_names(tree: ast.AST) -> Mapping[int, set[str]]:
    """For each line, the names, attributes and keys that it reads."""
    found: dict[int, set[str]] = defaultdict(set)
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            found[node.lineno].add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            found[node.end_lineno or node.lineno].add(node.attr)
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            found[node.lineno].add(str(node.slice.value))
        elif isinstance(node, ast.Call) and last_name(node.func) in ("get", "getattr"):
            found[node.lineno] |= set(_texts(node))
        elif isinstance(node, ast.keyword) and node.arg is None:
            found[node.value.lineno] |= set(_names(node.value))
    return found


def _lines(node: ast.AST) -> set[int]:
    """The lines of an assignment of a plain value, or of an option."""
    first, last = getattr(node, "lineno", 0), getattr(node, "end_lineno", 0)
    return set(range(first, last + 1))


def _is_plain(node: ast.AST) -> bool:
    """Whether an expression is made of constants, names and calls that pass them on."""
    for one in ast.walk(node):
        if isinstance(one, ast.Call) and last_name(one.func) not in PASSING:
            return False
        if isinstance(one, ast.Lambda | ast.ListComp | ast.GeneratorExp | ast.DictComp):
            return False
    return True


def _names(node: ast.AST) -> Iterable[str]:
    if isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.Attribute):
        yield node.attr
    elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        yield str(node.slice.value)
    elif isinstance(node, ast.Tuple | ast.List):
        for one in node.elts:
            yield from _names(one)
