"""Which statements and branches of the package the tests reach, by probes in its code.

A module is compiled with a probe before each statement: an assignment to the statement's place in
a list. Others stand where a branch or a loop ends without one. They take a sixth of a test's time;
a trace function takes more than twice of it. They are there where `LINES_REACHED` names a folder:
each process of the tests leaves a file in it.
"""

from __future__ import annotations

import ast
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType

PACKAGE = "gpu_mem_calculator"
SOURCE = Path(__file__).parents[1] / "src" / PACKAGE
RAN = "_ran_"  # the name of a module's list: 1 where a probe ran
EXCLUDED = "pragma: no cover"

reached: dict[str, list[int]] = {}  # the list of each module's file


@dataclass
class Probes:
    """The probes of one file, by their places in its list."""

    excluded: set[int]  # lines that need not be reached
    lines: list[int] = field(default_factory=list)  # each probe's line
    statements: list[int] = field(default_factory=list)  # probes before a statement
    ways: list[int] = field(default_factory=list)  # a probe on each way that a branch can go

    def before(self, line: int) -> ast.stmt:
        """A new probe."""
        self.lines.append(line)
        target = ast.Subscript(ast.Name(RAN, ast.Load()), ast.Constant(len(self.lines) - 1))
        target.ctx = ast.Store()
        probe = ast.Assign([target], ast.Constant(1))
        for node in ast.walk(probe):
            vars(node).update(lineno=line, end_lineno=line, col_offset=0, end_col_offset=0)
        return probe

    def block(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        """Statements with their probes."""
        made: list[ast.stmt] = []
        for one in statements:
            if not self.is_free(one):
                self.statements.append(len(self.lines))
                made.append(self.before(one.lineno))
                self.enter(one)
            made.append(one)
        return made

    def way(self, statements: list[ast.stmt], line: int) -> list[ast.stmt]:
        """The same for one way of a branch, which may have no statement of its own."""
        first = len(self.lines)
        self.ways.append(first)
        made = self.block(statements)
        return made if len(self.lines) > first else [self.before(line), *made]

    def enter(self, one: ast.stmt) -> None:
        """Put probes into what a statement holds."""
        match one:
            case ast.If():
                one.body = self.way(one.body, one.lineno)
                one.orelse = self.way(one.orelse, one.lineno)
            case ast.For() | ast.AsyncFor() | ast.While():
                one.body = self.way(one.body, one.lineno)
                if not (isinstance(one, ast.While) and isinstance(one.test, ast.Constant)):
                    one.orelse = self.way(one.orelse, one.lineno)
            case ast.Match():
                if not takes_all(one.cases[-1]):
                    others = ast.copy_location(ast.MatchAs(), one)
                    one.cases.append(ast.match_case(others, None, []))
                for case in one.cases:
                    case.body = self.way(case.body, case.pattern.lineno)
            case ast.Try():
                one.body, one.orelse = self.block(one.body), self.block(one.orelse)
                one.finalbody = self.block(one.finalbody)
                for handler in one.handlers:
                    handler.body = self.block(handler.body)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                one.body = self.block(one.body)
            case ast.With() | ast.AsyncWith():
                one.body = self.block(one.body)

    def is_free(self, one: ast.stmt) -> bool:
        """Whether a statement needs no probe: it does nothing, or only a type checker runs it."""
        match one:
            case ast.Global() | ast.Nonlocal() | ast.Expr(ast.Constant()):
                return True
            case ast.ImportFrom(module="__future__") | ast.If(ast.Name("TYPE_CHECKING")):
                return True
        return one.lineno in self.excluded


def takes_all(case: ast.match_case) -> bool:
    """Whether a case takes whatever is left."""
    return (
        isinstance(case.pattern, ast.MatchAs)
        and case.pattern.pattern is None
        and case.guard is None
    )


def with_probes(text: str) -> tuple[ast.Module, Probes]:
    """A file's code with probes."""
    tree = ast.parse(text)
    lines = enumerate(text.splitlines(), 1)
    probes = Probes({number for number, line in lines if EXCLUDED in line})
    tree.body = probes.block(tree.body)
    return tree, probes


class ProbedLoader(SourceFileLoader):
    """Runs a module with probes."""

    def exec_module(self, module: ModuleType) -> None:
        """Run the module's code; a module that is run again goes on with its list."""
        path = str(Path(self.path).resolve())
        tree, probes = with_probes(self.get_source(module.__name__) or "")
        vars(module)[RAN] = reached.setdefault(path, [0] * len(probes.lines))
        exec(compile(tree, self.path, "exec", dont_inherit=True), vars(module))


class ProbedFinder(MetaPathFinder):
    """Finds the package's modules, with the loader above."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """As Python would."""
        spec = PathFinder.find_spec(name, path) if name.split(".")[0] == PACKAGE else None
        if spec and isinstance(spec.loader, SourceFileLoader):
            spec.loader = ProbedLoader(spec.loader.name, spec.loader.path)
        return spec


def folder() -> Path | None:
    """Where a process leaves what it reached; None where nothing is counted."""
    named = os.environ.get("LINES_REACHED")
    return Path(__file__).parents[1] / named if named else None


def install() -> None:
    """Count from now on, where it is asked for."""
    if folder():
        sys.meta_path.insert(0, ProbedFinder())


def save() -> None:
    """Leave what this process reached."""
    if (kept := folder()) and reached:
        kept.mkdir(exist_ok=True)
        (kept / f"{os.getpid()}.json").write_text(json.dumps(reached))


def read(kept: Path) -> dict[str, list[int]]:
    """What all processes reached, by file: how many of them each probe ran in."""
    added: dict[str, list[int]] = {}
    for process in sorted(kept.glob("*.json")):
        for path, ran in json.loads(process.read_text()).items():
            before = added.get(path, [0] * len(ran))
            added[path] = [a + b for a, b in zip(before, ran, strict=True)]
    return added
