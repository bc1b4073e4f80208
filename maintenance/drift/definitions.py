"""The functions, classes and constants of a Python file, compared statement by statement.

A statement is a digest of its syntax tree: comments, docstrings, layout and line numbers do not
change it. A definition is the text of its statements' digests, so a record of it holds no code.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from difflib import SequenceMatcher
from typing import NamedTuple

DIGITS = 4  # of each statement's digest
_IGNORED = {"ctx", "kind", "type_comment"}
_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")
Defined = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class Definition(NamedTuple):
    """A function, class or constant: its first and last line, and its node."""

    first: int
    last: int
    node: ast.stmt

    @property
    def digest(self) -> str:
        """The digests of its statements, DIGITS each."""
        return "".join(_statements(self.node))


class Module:
    """The definitions of one file by qualified name."""

    def __init__(self, text: str) -> None:
        self.definitions: dict[str, Definition] = {}
        self.error = ""
        try:
            self._collect(ast.parse(text).body, "")
        except (SyntaxError, ValueError) as error:
            self.error = str(error)

    def _collect(self, body: list[ast.stmt], prefix: str) -> None:
        """Add what is defined in a module or a class; also under `if` and `try`."""
        for node in body:
            if isinstance(node, Defined):
                first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
                self._add(f"{prefix}{node.name}", first, node)
                if isinstance(node, ast.ClassDef):
                    self._collect(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, ast.Assign | ast.AnnAssign) and not prefix:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for target in targets:
                    if isinstance(target, ast.Name):
                        self._add(target.id, node.lineno, node)
            elif isinstance(node, ast.If | ast.Try):
                for block in _BLOCKS[:2]:
                    self._collect(getattr(node, block, []), prefix)

    def _add(self, name: str, first: int, node: ast.stmt) -> None:
        self.definitions.setdefault(name, Definition(first, node.end_lineno or first, node))

    def at(self, first: int, last: int) -> list[str]:
        """The innermost definition around two lines; else all definitions that begin in between."""
        around = [n for n, d in self.definitions.items() if d.first <= first and last <= d.last]
        if around:
            return [max(around, key=lambda name: self.definitions[name].first)]
        return [n for n, d in self.definitions.items() if first <= d.first <= last]

    def named(self, word: str) -> list[str]:
        """The definitions that a word of a citation names: in full, or a method by its name."""
        if word in self.definitions:
            return [word]
        return [name for name in self.definitions if name.endswith(f".{word}")]


def _statements(node: ast.AST) -> Iterator[str]:
    """Digests of a statement and of those inside it, in order, without docstrings."""
    yield _digest(_shape(node, blocks=False))
    for name in _BLOCKS:
        for inner in getattr(node, name, None) or []:
            if isinstance(inner, Defined):
                yield _digest(inner.name)
            if not (isinstance(inner, ast.Expr) and isinstance(inner.value, ast.Constant)):
                yield from _statements(inner)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


def _shape(node: object, blocks: bool = True) -> str:
    """A node as text that is the same in every version of Python, with the blocks inside it or not.

    The name of a function or class is left out, so that a renamed one is recognised.
    """
    if isinstance(node, list):
        return "[" + ",".join(map(_shape, node)) + "]"
    if not isinstance(node, ast.AST):
        return repr(node)
    ignored = {*_IGNORED, *(() if blocks else _BLOCKS)}
    if isinstance(node, Defined):
        ignored.add("name")
    fields = [
        f"{name}={_shape(value)}"
        for name, value in ast.iter_fields(node)
        if name not in ignored and value is not None and value != []
    ]
    return f"{type(node).__name__}({','.join(fields)})"


def difference(old: str, new: str) -> tuple[int, int]:
    """Statements that were added and removed between two digests."""
    before, after = (
        [text[i : i + DIGITS] for i in range(0, len(text), DIGITS)] for text in (old, new)
    )
    added = removed = 0
    matcher = SequenceMatcher(None, before, after, autojunk=False)
    for tag, first, last, start, end in matcher.get_opcodes():
        if tag != "equal":
            removed, added = removed + last - first, added + end - start
    return added, removed
