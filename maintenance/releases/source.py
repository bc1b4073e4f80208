"""The Python files of one release: where a name is defined, through imports and base classes."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from fnmatch import fnmatch
from typing import NamedTuple, Protocol

MOST_IMPORTS = 12  # in a row, until a name's definition
Defined = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


class Texts(Protocol):
    """Files by path."""

    @property
    def names(self) -> frozenset[str]:
        """The paths of all files."""

    def text(self, path: str) -> str:
        """The text of a file."""


class Binding(NamedTuple):
    """A statement that gives a name its value, and the conditions under which it runs."""

    node: ast.stmt
    tests: tuple[str, ...] = ()


class Place(NamedTuple):
    """Where something is: the file, what binds it there, and the class around it, if one is."""

    path: str
    bindings: tuple[Binding, ...] = ()  # none: the file itself
    owner: ast.ClassDef | None = None

    @property
    def node(self) -> ast.stmt | None:
        """The definition; of several the last, which is the one that holds."""
        return self.bindings[-1].node if self.bindings else None


Names = dict[str, list[Binding]]


class Source:
    """The files of one release; a file is parsed when it is needed."""

    def __init__(self, files: Texts) -> None:
        self.files = files
        self._names: dict[str, Names] = {}

    def matching(self, pattern: str) -> list[str]:
        """The paths that a pattern names, in order."""
        if "*" not in pattern:
            return [pattern] if pattern in self.files.names else []
        return sorted(name for name in self.files.names if fnmatch(name, pattern))

    def names(self, path: str) -> Names:
        """What the top level of a file binds."""
        if path not in self._names:
            self._names[path] = bound(ast.parse(self.files.text(path)).body)
        return self._names[path]

    def find(self, path: str, name: str, left: int = MOST_IMPORTS) -> Place | None:
        """Where a name that a file uses is defined; None where that is in another package."""
        if not left:
            return None
        bindings = self.names(path).get(name, ())
        own = [one for one in bindings if not isinstance(one.node, ast.Import | ast.ImportFrom)]
        if own:
            return Place(path, tuple(own))
        for binding in bindings:
            if found := self.through(binding, name, path, left):
                return found
        for binding in self.names(path).get("*", ()):
            for module, _ in imported(binding.node, "*", path):
                if found := self._in_module(module, name, left - 1):
                    return found
        return None

    def through(
        self, binding: Binding, name: str, path: str, left: int = MOST_IMPORTS
    ) -> Place | None:
        """Where a name is defined that an import of a file binds."""
        for module, original in imported(binding.node, name, path):
            if found := self._in_module(module, original, left - 1):
                return found
        return None

    def _in_module(self, module: str, name: str, left: int) -> Place | None:
        """A name of a module; without a name, the module."""
        for path in (f"{module}.py", f"{module}/__init__.py"):
            if path in self.files.names:
                if not name:
                    return Place(path)
                if found := self.find(path, name, left):
                    return found
        return self._in_module(f"{module}/{name}", "", left) if name else None

    def dotted(self, path: str, node: ast.expr, owner: ast.ClassDef | None = None) -> Place | None:
        """Where `name`, `module.name` or `Class.name` is defined."""
        if isinstance(node, ast.Name):
            if node.id == "cls" and owner:
                return Place(path, (Binding(owner),))
            return self.find(path, node.id)
        if isinstance(node, ast.Attribute):
            base = self.dotted(path, node.value, owner)
            if base is None:
                return None
            if not base.bindings:
                return self.find(base.path, node.attr)
            if isinstance(base.node, ast.ClassDef):
                return self.attribute(base, node.attr)
        return None

    def attribute(self, place: Place, name: str) -> Place | None:
        """What a class or one of its bases binds a name to."""
        for one in self.lineage(place):
            assert isinstance(one.node, ast.ClassDef)
            if bindings := bound(one.node.body).get(name):
                return Place(one.path, tuple(bindings), one.node)
        return None

    def bases(self, place: Place) -> Iterator[tuple[str, Place | None]]:
        """The bases of a class by name, each with its place in this release."""
        if isinstance(place.node, ast.ClassDef):
            for base in place.node.bases:
                base = base.value if isinstance(base, ast.Subscript) else base
                yield ast.unparse(base).rpartition(".")[2], self.dotted(place.path, base)

    def lineage(self, place: Place) -> Iterator[Place]:
        """A class and the classes that it inherits from, the nearest first."""
        yield place
        for _, base in self.bases(place):
            if base and isinstance(base.node, ast.ClassDef) and base.node is not place.node:
                yield from self.lineage(base)


def bound(body: list[ast.stmt], tests: tuple[str, ...] = ()) -> Names:
    """Names that statements bind, also under `if`, `try` and `with`; `*` for whole modules."""
    names: Names = {}
    for node in body:
        if isinstance(node, Defined):
            names.setdefault(node.name, []).append(Binding(node, tests))
        elif isinstance(node, ast.Assign):
            for target in (one for one in node.targets if isinstance(one, ast.Name)):
                names.setdefault(target.id, []).append(Binding(node, tests))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.setdefault(node.target.id, []).append(Binding(node, tests))
        elif isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                first = alias.name if isinstance(node, ast.ImportFrom) else alias.name.split(".")[0]
                names.setdefault(alias.asname or first, []).append(Binding(node, tests))
        else:
            for block, test in _blocks(node):
                for name, bindings in bound(block, (*tests, *([test] if test else []))).items():
                    names.setdefault(name, []).extend(bindings)
    return names


def _blocks(node: ast.stmt) -> Iterator[tuple[list[ast.stmt], str]]:
    """The blocks of a statement, each with the condition under which it runs."""
    if isinstance(node, ast.If):
        test = ast.unparse(node.test)
        yield node.body, test
        yield node.orelse, f"not {test}"
    elif isinstance(node, ast.Try):
        for handler in node.handlers:  # what holds where nothing is raised comes last
            yield handler.body, "an import fails"
        yield node.body, ""
        yield node.orelse, ""
    elif isinstance(node, ast.With):
        yield node.body, ""


def imported(node: ast.stmt, name: str, path: str) -> Iterator[tuple[str, str]]:
    """The module's path and the name in it that an import binds a name to."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            if (alias.asname or alias.name.split(".")[0]) == name:
                module = alias.name if alias.asname else alias.name.split(".")[0]
                yield module.replace(".", "/"), ""
    elif isinstance(node, ast.ImportFrom):
        folder = path.rpartition("/")[0].split("/")
        base = folder[: len(folder) - node.level + 1] if node.level else []
        module = "/".join([*base, *(node.module.split(".") if node.module else [])])
        for alias in node.names:
            if (alias.asname or alias.name) == name:
                yield module, alias.name if name != "*" else ""
