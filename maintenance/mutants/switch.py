"""All sampled mutants in the code at once, each off until it is switched on.

An import hook compiles a module with `changed if __mutant__(number) else original` at each site.
Child processes of a test do the same: `hook/sitecustomize.py` is on their PYTHONPATH.
"""

from __future__ import annotations

import ast
import builtins
import os
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Any

import msgspec

from .sites import SOURCE, Code, Site, places_of

OPTIONS = [
    *("-q", "-s", "--assert=plain", "--tb=no", "-p", "no:cacheprovider", "-p", "no:xdist"),
    *("-p", "no:randomly", "-p", "maintenance.mutants.session", "--continue-on-collection-errors"),
]
FOLDER = Path(os.environ.get("MUTANTS_FOLDER", ""))  # sample.json, record.txt and results.jsonl
active = int(os.environ.get("MUTANT", "0"))
seen: set[int] = set()  # reached by the test that runs


def mutant(number: int) -> bool:
    """Whether a mutant is on; while tests are recorded, notes that this test reached it."""
    if active:
        return number == active
    if number not in seen:
        seen.add(number)
        record(f"{number}\t{os.environ.get('PYTEST_CURRENT_TEST', '').rpartition(' ')[0]}\n")
    return False


def record(line: str) -> None:
    """Append a line to the record, also from a child process."""
    with (FOLDER / "record.txt").open("a", encoding="utf-8") as file:
        file.write(line)


def read_sample() -> list[Site]:
    """The mutants of the session."""
    return msgspec.json.decode((FOLDER / "sample.json").read_bytes(), type=list[Site])


def call(number: int) -> ast.Call:
    """`__mutant__(number)`."""
    return ast.Call(ast.Name("__mutant__", ast.Load()), [ast.Constant(number)], [])


class Switches(ast.NodeTransformer):
    """Puts switches into a module; each function says that its module is used (-number)."""

    def __init__(self, sites: dict[int, tuple[Site, Code]], module: int) -> None:
        self.sites, self.module = sites, module

    def visit(self, node: ast.AST) -> Any:
        """A node with its switch."""
        entry = self.sites.pop(id(node), None)
        self.generic_visit(node)
        if isinstance(node, ast.FunctionDef):
            at = int(ast.get_docstring(node, clean=False) is not None)
            node.body.insert(at, ast.Expr(call(-self.module)))
        if entry is None:
            return node
        site, new = entry
        if isinstance(node, ast.stmt):
            assert isinstance(new, ast.stmt)
            return ast.If(call(site.number), [new], [node])
        assert isinstance(node, ast.expr)
        assert isinstance(new, ast.expr)
        return ast.IfExp(call(site.number), new, node)


def switched(path: Path, sites: list[Site]) -> CodeType:
    """The code of a file with a switch at each of its sites."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = places_of(sites[0].path, tree)
    chosen = {id(found[site.index][0]): (site, found[site.index][1]) for site in sites}
    tree = ast.fix_missing_locations(Switches(chosen, sites[0].number).visit(tree))
    return compile(tree, str(path), "exec", dont_inherit=True)


class Loader(SourceFileLoader):
    """Loads a module of the sample."""

    def get_code(self, fullname: str) -> CodeType:
        """The switched code, never from a cache."""
        return switched(Path(self.path), by_path[self.path])


class Finder(MetaPathFinder):
    """Finds modules of the sample before others do."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """The spec of a module of the sample, else None."""
        if not fullname.startswith("gpu_mem_calculator"):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec and spec.origin in by_path:
            spec.loader = Loader(fullname, spec.origin)
        return spec


def install(sites: list[Site]) -> None:
    """From now on, modules are imported with their switches."""
    for site in sites:
        by_path.setdefault(str(SOURCE / site.path), []).append(site)
    setattr(builtins, "__mutant__", mutant)  # noqa: B010
    sys.meta_path.insert(0, Finder())


by_path: dict[str, list[Site]] = {}
if "MUTANTS_FOLDER" in os.environ:
    install(read_sample())
