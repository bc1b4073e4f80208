"""Places in the source where an operator or a number can be changed, and a sample of them."""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "gpu_mem_calculator"
SWAPS: dict[type, type] = {
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult},
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt},
    **{ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.And: ast.Or, ast.Or: ast.And},
}
TEXT = (ast.JoinedStr, ast.List, ast.Tuple, ast.Dict)
SKIPPED_FIELDS = {"annotation", "returns", "decorator_list", "format_spec", "pattern", "bases"}
LAYOUT_CALLS = {"round", "ljust", "rjust", "center", "indent", "wrap", "fill", "zip"}
LAYOUT_PACKAGES = {"report", "web", "cli"}  # their numbers are widths, places and limits of text
# coordinates of pictures, versions, and the command itself
SKIPPED_FILES = {"picture.py", "backtest_picture.py", "versions.py", "__main__.py"}


class Site(Struct, frozen=True):
    """One mutant: the `index`-th place of a file, with its code before and after."""

    number: int
    path: str  # below the package
    index: int
    line: int
    text: str  # of the line
    before: str
    after: str
    at_import: bool  # runs when the module is imported, outside all functions

    @property
    def package(self) -> str:
        """The package of the file."""
        return self.path.partition("/")[0]

    @property
    def place(self) -> tuple[str, str, str, str]:
        """What stays the same when lines move."""
        return self.path, self.text, self.before, self.after

    def __str__(self) -> str:
        return f"{self.path}:{self.line}  {self.before}  ->  {self.after}"


Code = ast.expr | ast.stmt


def changed(node: ast.AST, numbers: bool) -> Code | None:
    """The node with one operator or number changed; None where nothing is to be changed."""
    match node:
        case ast.BinOp(left=left, op=op, right=right) if type(op) in SWAPS:
            if not any(is_text(side) for side in (left, right)):
                return ast.BinOp(left, SWAPS[type(op)](), right)
        case ast.AugAssign(target=target, op=op, value=value) if type(op) in SWAPS:
            return ast.AugAssign(target, SWAPS[type(op)](), value)
        case ast.Compare(left=left, ops=[op], comparators=others) if type(op) in SWAPS:
            return ast.Compare(left, [SWAPS[type(op)]()], others)
        case ast.BoolOp(op=op, values=values):
            return ast.BoolOp(SWAPS[type(op)](), values)
        case ast.Constant(value=int(value)) if numbers and not isinstance(value, bool):
            return ast.Constant(value + 1 if value < 2 or node.lineno % 2 else 2 * value)
    return None


def is_text(node: ast.AST) -> bool:
    """Whether a node is a string or a list of parts, for which `+` and `*` mean something else."""
    return isinstance(getattr(node, "value", None), str) or isinstance(node, TEXT)


def places(
    node: ast.AST, numbers: bool, at_import: bool = True
) -> Iterator[tuple[Code, Code, bool]]:
    """(node, its change, whether it runs at import) of every place below a node, in order."""
    if isinstance(node, ast.Call):
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        numbers = numbers and name not in LAYOUT_CALLS
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        return
    if isinstance(node, Code) and (new := changed(node, numbers)) is not None:
        yield node, new, at_import
    is_function = isinstance(node, ast.FunctionDef | ast.Lambda)
    for name, value in ast.iter_fields(node):
        children = value if isinstance(value, list) else [value]
        for child in () if name in SKIPPED_FIELDS else children:
            if isinstance(child, ast.AST):
                yield from places(
                    child, numbers, at_import and not (is_function and name == "body")
                )


def places_of(path: str, tree: ast.AST) -> list[tuple[Code, Code, bool]]:
    """All places of a file of the package."""
    return list(places(tree, path.partition("/")[0] not in LAYOUT_PACKAGES))


def sample(number: int, seed: int, packages: str = "*") -> list[Site]:
    """About `number` sites, drawn by package: a share by lines, and three or more of each."""
    folders = sorted(path.parent for path in SOURCE.glob(f"{packages}/__init__.py"))
    texts = {
        folder: {
            str(path.relative_to(SOURCE)): path.read_text() for path in sorted(folder.rglob("*.py"))
        }
        for folder in folders
    }
    lines = {folder: "".join(texts[folder].values()).count("\n") for folder in folders}
    drawn: list[Site] = []
    for folder in folders:
        sites = [
            (path, index, place)
            for path, text in texts[folder].items()
            if Path(path).name not in SKIPPED_FILES
            for index, place in enumerate(places_of(path, ast.parse(text)))
        ]
        share = max(3, round(number * lines[folder] / sum(lines.values())))
        chosen = random.Random(f"{seed} {folder.name}").sample(sites, min(share, len(sites)))
        for path, index, (node, new, at_import) in sorted(chosen, key=lambda site: site[:2]):
            before, after, line = ast.unparse(node), ast.unparse(new), node.lineno
            text = texts[folder][path].splitlines()[line - 1].strip()
            drawn.append(Site(len(drawn) + 1, path, index, line, text, before, after, at_import))
    return drawn
