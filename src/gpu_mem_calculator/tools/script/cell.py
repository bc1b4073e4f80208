"""A cell of a notebook: its Python, and the commands that it starts with `!`.

The cell is read, never executed. What it uses of earlier cells is taken from their statements, and
the plain values of the notebook's names stand in its commands as IPython would write them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

SHELLS = ("bash", "sh", "script", "system", "sx")  # magics whose cell is a shell script
TIMES = ("time", "timeit", "capture", "prun")  # magics that run their cell
SETS = ("env", "set_env")
NO_EFFECT = (
    "pip",
    "conda",
    "mamba",
    "uv",
    "load_ext",
    "reload_ext",
    "autoreload",
    "matplotlib",
    "config",
)
COMMAND = re.compile(r"(\s*)(?:[\w, ]+=\s*)?!{1,2}(.*)")
MAGIC = re.compile(r"(\s*)(?:[\w, ]+=\s*)?%{1,2}(\w+)\s*(.*)")
NAME = re.compile(r"\{(\w+)\}|\$(\w+)|\$\{(\w+)\}")


class CellText(Struct, frozen=True):
    """What a cell has: Python, shell commands, and magics that were not read."""

    python: str
    shell: str
    unread: tuple[str, ...] = ()


def cell_text(cell: str, values: Mapping[str, object]) -> CellText:
    """The parts of a cell; lines of Python keep their numbers. `values`: the notebook's names."""
    first, _, rest = cell.lstrip().partition("\n")
    magic = MAGIC.fullmatch(first) if first.startswith("%%") else None
    if magic is not None and magic[2] in SHELLS:
        return CellText("", rest)
    if magic is not None:
        cell = f"\n{rest}"
    unread = () if magic is None or magic[2] in TIMES else (first,)
    python, shell, joined = [], [], False
    for line in cell.split("\n"):
        if joined:  # a command goes on
            shell.append(with_values(line, values))
            python.append("")
            joined = line.endswith("\\")
            continue
        command, other = COMMAND.fullmatch(line), MAGIC.fullmatch(line)
        if command:
            shell.append(with_values(command[2], values))
            joined = line.endswith("\\")
        elif other and other[2] in SETS:
            shell.append(f"export {'='.join(re.split('[= ]', other[3], maxsplit=1))}")
        elif other and other[2] not in NO_EFFECT:
            unread = (*unread, line.strip())
        found = command or other
        python.append(line if found is None else f"{found[1]}pass")
    says = any(line.strip() not in ("", "pass") for line in python)
    return CellText("\n".join(python) if says else "", "\n".join(shell), unread)


def with_values(command: str, values: Mapping[str, object]) -> str:
    """A command with the notebook's plain values in place of `{name}` and `$name`."""

    def value(found: re.Match[str]) -> str:
        known = values.get(next(filter(None, found.groups())))
        return str(known) if isinstance(known, str | int | float) else found[0]

    return NAME.sub(value, command)


def needed(cell: str, earlier: Sequence[str]) -> tuple[list[str], list[str]]:
    """The statements of earlier cells that make what a cell uses, in their order, and the names;
    earlier cells are given as Python, the latest one last.
    """
    tree = _parsed(cell)
    if tree is None:
        return [], []
    wanted = _read(tree) - {name for one in tree.body for name in _imported(one)}
    used: set[str] = set()
    found: list[str] = []
    for text in reversed(earlier):
        before = _parsed(text)
        for one in reversed(before.body if before is not None else []):
            made = set(_made(one)) & wanted
            if made:
                wanted |= _read(one)
                used |= made
                found.append(ast.unparse(one))
    return found[::-1], sorted(used)


def _parsed(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _read(node: ast.AST) -> set[str]:
    names = (one for one in ast.walk(node) if isinstance(one, ast.Name))
    return {one.id for one in names if isinstance(one.ctx, ast.Load)}


def _imported(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.Import | ast.ImportFrom):
        yield from ((one.asname or one.name).partition(".")[0] for one in node.names)


def _made(node: ast.stmt) -> Iterator[str]:
    """The names that a statement sets or changes: also those of attributes that it sets, and of
    objects whose methods it calls.
    """
    yield from _imported(node)
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
        return
    for one in ast.walk(node):
        if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store):
            yield one.id
        place = one.func if isinstance(one, ast.Call) else one
        if isinstance(place, ast.Attribute | ast.Subscript) and (
            place is not one or isinstance(place.ctx, ast.Store)
        ):
            while isinstance(place, ast.Attribute | ast.Subscript):
                place = place.value
            if isinstance(place, ast.Name):
                yield place.id
