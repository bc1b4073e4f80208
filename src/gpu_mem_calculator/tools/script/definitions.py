"""The functions, classes and modules of a script: defined, imported and called."""

from __future__ import annotations

import ast
import warnings
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

from ...runfile.text.errors import InputError
from ..reading.named_files import NamedFiles
from .expressions import Expressions, last_name, merged
from .record import Line, ScriptRecord
from .values import UNKNOWN, Arguments, Imported, Scope, ScriptClass, ScriptFunction, Thing

DEEPEST = 40  # calls inside of calls
SHOWN = 70  # characters of a line in a sentence
Block = Sequence[ast.stmt]


class ScriptWorld(Expressions):
    """One script, with the values that its command gives."""

    def __init__(
        self,
        path: str,
        files: NamedFiles,
        given: Mapping[str, Any],
        environment: Mapping[str, str],
        num_gpus: int,
    ) -> None:
        self.path, self.files, self.given = path, files, given
        self.environment, self.num_gpus = environment, num_gpus
        self.found = ScriptRecord()
        self.quiet = False  # whether a function is looked through that nothing calls
        self.called = True  # whether a library calls it, as methods of an object of the script
        self.unsure: list[tuple[int, str]] = []  # conditions of the branches around
        self.contexts: list[str] = []  # names of the `with` blocks around
        self.steps, self.depth = 0, 0
        self.entered: set[int] = set()  # functions that were called
        self.returned: list[list[Any]] = []
        self.modules: dict[str, Scope | None] = {}
        self.loaders: list[Thing] = []  # of the loops around
        self.items: dict[int, tuple[Any, dict[str, int]]] = {}

    @abstractmethod
    def block(self, statements: Block, scope: Scope) -> str:
        """Follow statements; says how the block ends."""

    def seen(self, line: int, what: str, effect: str, why: str = "", **bounds: Any) -> None:
        """Account for a call or an assignment, unless nothing calls it."""
        if self.quiet:
            return
        self.found.lines.append(Line(line, " ".join(what.split())[:SHOWN], effect, why, **bounds))
        if effect == "memory":
            self.found.conditions |= dict(self.unsure)

    def note(self, arguments: Arguments, why: str, effect: str) -> None:
        """Account for a call on data, and for each of its arguments by its own line."""
        for line in {arguments.line, *arguments.lines.values(), *arguments.places}:
            self.found.lines.append(Line(line, arguments.text, effect, why))

    def note_length(self, line: int, tokens: int, *, named: bool = False) -> None:
        """Note the tokens to which sequences are truncated, by a call or by a name; in a function
        that nothing calls they only may be the run's.
        """
        lengths = self.found.named_lengths if named else self.found.lengths
        lengths = lengths if self.called or not self.quiet else self.found.unused_lengths
        lengths[line] = tokens

    def make(self, thing: Thing) -> Thing:
        """Keep an object that was made, unless nothing calls for it."""
        if not self.quiet:
            self.found.things.append(thing)
        return thing

    def things(self, kind: str) -> list[Thing]:
        """The objects of a kind, in the order in which they were made."""
        return [one for one in self.found.things if one.kind == kind]

    def data(self, name: str) -> Any:
        """The data of a file; UNKNOWN where it cannot be read."""
        try:
            return self.files.data(name)
        except InputError:
            return UNKNOWN

    def define(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, scope: Scope
    ) -> None:
        """Bind a function or a class."""
        if not isinstance(node, ast.ClassDef):
            function: Any = ScriptFunction(node, scope)
            self.found.functions.append(function)
            for decorator in reversed(node.decorator_list):
                function = self.decorated(decorator, function, scope)
            scope.put(node.name, function)
            return
        bases = tuple(self.value(one, scope) for one in node.bases)
        made = ScriptClass(node.name, node, scope, bases)
        for base in bases:
            if isinstance(base, ScriptClass):
                made.fields |= base.fields
                made.lines |= base.lines
        inner = Scope(parent=scope)
        for one in node.body:
            if isinstance(one, ast.AnnAssign | ast.Assign):
                targets = one.targets if isinstance(one, ast.Assign) else [one.target]
                for name in [target.id for target in targets if isinstance(target, ast.Name)]:
                    made.fields[name] = self._default(one.value, inner)
                    made.lines[name] = one.lineno
                    inner.put(name, made.fields[name])
            elif isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef):
                self.found.functions.append(ScriptFunction(one, scope, made))
        scope.put(node.name, made)
        self.found.classes.append(made)

    def _default(self, node: ast.AST | None, scope: Scope) -> Any:
        """The default of a dataclass's field."""
        if isinstance(node, ast.Call) and last_name(node.func) in ("field", "HfArg", "Field"):
            for one in node.keywords:
                if one.arg == "default":
                    return self.value(one.value, scope)
                if one.arg == "default_factory":
                    return self._factory(one.value, scope)
            return self.value(node.args[0], scope) if node.args else UNKNOWN
        return self.value(node, scope)

    def _factory(self, node: ast.AST, scope: Scope) -> Any:
        if isinstance(node, ast.Lambda):
            return self.value(node.body, scope)
        return {"list": [], "dict": {}, "set": []}.get(last_name(node), UNKNOWN)

    @abstractmethod
    def decorated(self, node: ast.expr, function: Any, scope: Scope) -> Any:
        """A function under a decorator."""

    def import_names(self, node: ast.Import | ast.ImportFrom, scope: Scope) -> None:
        """Bind names of libraries, and of files beside the script."""
        if isinstance(node, ast.Import):
            self.found.imports |= {one.name for one in node.names}
            for one in node.names:
                name = one.asname or one.name.partition(".")[0]
                scope.put(name, Imported(one.name if one.asname else name))
            return
        module = "." * node.level + (node.module or "")
        self.found.imports |= {module, *(one.name for one in node.names)}
        own = self._module(module)
        for one in node.names:
            if own is not None and one.name == "*":
                scope.names |= own.names
                continue
            found = own.get(one.name) if own is not None else UNKNOWN
            found = Imported(f"{module}.{one.name}") if found is UNKNOWN else found
            scope.put(one.asname or one.name, found)

    def _module(self, name: str) -> Scope | None:
        """The names of a file of the user's beside the script; None where there is none."""
        folder = self.path.replace("\\", "/").rpartition("/")[0]
        path = f"{folder}/" if folder else ""
        path += name.lstrip(".").replace(".", "/") + ".py"
        if path not in self.modules:
            self.modules[path] = None
            if self.files.folder is not None and name.strip(".") and self.files.exists(path):
                scope = Scope(names={"__name__": name})
                self.modules[path] = scope
                self.block(parse(self.files.text(path), path).body, scope)
        return self.modules[path]

    def follow(self, function: Any, arguments: Arguments) -> Any:
        """Call a function of the script; the values that it may return, joined."""
        node = function.node
        self.entered.add(id(node))
        if self.depth >= DEEPEST:
            return UNKNOWN
        scope = Scope(parent=function.scope)
        self._parameters(node, function, arguments, scope)
        if isinstance(node, ast.Lambda):
            return self.value(node.body, scope)
        self.depth += 1
        self.returned.append([])
        self.block(node.body, scope)
        self.depth -= 1
        values = self.returned.pop()
        return reduce(merged, values) if values else None

    def _parameters(
        self, node: Any, function: ScriptFunction, arguments: Arguments, scope: Scope
    ) -> None:
        places = [one.arg for one in (*node.args.posonlyargs, *node.args.args)]
        defaults = dict(zip(reversed(places), reversed(node.args.defaults), strict=False))
        pairs = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
        defaults |= {one.arg: default for one, default in pairs if default is not None}
        every = [*places, *(one.arg for one in node.args.kwonlyargs)]
        for name in every:
            value = self.value(defaults.get(name), function.scope)
            scope.names[name] = value if not arguments.is_open else UNKNOWN
        given = list(arguments.positional)
        if function.bound is not None and places:
            given.insert(0, function.bound)
        scope.names |= dict(zip(places, given, strict=False))
        scope.names |= {key: one for key, one in arguments.named.items() if key in every}
        if node.args.vararg:
            scope.names[node.args.vararg.arg] = given[len(places) :]
        if node.args.kwarg:
            rest = {key: one for key, one in arguments.named.items() if key not in every}
            scope.names[node.args.kwarg.arg] = UNKNOWN if arguments.is_open else rest


def parse(text: str, path: str) -> ast.Module:
    """The tree of a script's text."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise InputError(f"{path} is not a Python script that can be read") from None
