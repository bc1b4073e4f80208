"""Follows a script's statements in their order, from the top of the file into its functions.

Branches whose condition the command decides are followed alone; of the others both are, and a
limit names the condition. Loops are followed once for each item that the text shows, else once.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from ...core.errors import InputError
from ..reading.named_files import NamedFiles
from .expressions import Expressions, arguments_of, bind, element, merged
from .operations import calculate, truth
from .record import Found, Line
from .values import UNKNOWN, Arguments, Function, Imported, Scope, ScriptClass, Thing

MOST_STEPS = 100_000  # statements and calls that are followed
DEEPEST = 40  # calls inside of calls
LONGEST = 64  # items of a list that are gone through
SHOWN = 70  # characters of a line in a sentence
Block = Sequence[ast.stmt]
NEXT, LEFT, ENDED = "next", "left", "ended"  # after a block: go on, leave the loop, leave the function


class Interpreter(Expressions):
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
        self.found = Found()
        self.unsure: list[tuple[int, str]] = []  # conditions of the branches around
        self.contexts: list[str] = []  # names of the `with` blocks around
        self.steps, self.depth = 0, 0
        self.entered: set[int] = set()  # functions that were called
        self.returned: list[list[Any]] = []
        self.modules: dict[str, Scope | None] = {}
        self.items: dict[int, tuple[Any, dict[str, int]]] = {}

    def run(self, text: str) -> Found:
        """Follow the whole text."""
        scope = Scope(names={"__name__": "__main__"})
        self.found.tree = parse(text, self.path)
        self.block(self.found.tree.body, scope)
        return self.found

    # What the tables of calls use.

    def seen(self, line: int, what: str, effect: str, why: str = "", **bounds: Any) -> None:
        """Account for a call or an assignment."""
        self.found.lines.append(Line(line, " ".join(what.split())[:SHOWN], effect, why, **bounds))
        if effect == "memory":
            self.found.conditions |= dict(self.unsure)

    def make(self, thing: Thing) -> Thing:
        """Keep an object that was made."""
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

    # Statements.

    def block(self, statements: Block, scope: Scope) -> str:
        """Follow statements; says how the block ends."""
        for one in statements:
            self.steps += 1
            if self.steps > MOST_STEPS:
                self.found.is_cut = True
                return ENDED
            ended = self.statement(one, scope)
            if ended != NEXT:
                return ended
        return NEXT

    def statement(self, node: ast.stmt, scope: Scope) -> str:
        """Follow one statement."""
        if isinstance(node, ast.Expr):
            self.value(node.value, scope)
        elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
            self._assign(node, scope)
        elif isinstance(node, ast.If):
            return self._branch(node, scope)
        elif isinstance(node, ast.For | ast.AsyncFor | ast.While):
            return self._loop(node, scope)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            self._define(node, scope)
        elif isinstance(node, ast.Return):
            value = self.value(node.value, scope) if node.value else None
            if self.returned:
                self.returned[-1].append(value)
            return ENDED
        elif isinstance(node, ast.Raise):
            return ENDED
        elif isinstance(node, ast.Break | ast.Continue):
            return LEFT
        else:
            return self._compound(node, scope)
        return NEXT

    def _compound(self, node: ast.stmt, scope: Scope) -> str:
        if isinstance(node, ast.With | ast.AsyncWith):
            return self._with(node, scope)
        if isinstance(node, ast.Try | ast.TryStar):
            ended = self.block(node.body, scope)
            return self.block([*node.orelse, *node.finalbody], scope) if ended == NEXT else ended
        if isinstance(node, ast.Import | ast.ImportFrom):
            self._import(node, scope)
        elif isinstance(node, ast.Global | ast.Nonlocal):
            scope.outer |= set(node.names)
        elif isinstance(node, ast.Delete):
            for one in node.targets:
                if isinstance(one, ast.Name):
                    scope.names.pop(one.id, None)
        elif isinstance(node, ast.Match):
            self.value(node.subject, scope)
            for case in node.cases:
                self._maybe(case.body, [], scope, node.lineno, ast.unparse(case.pattern))
        return NEXT

    def _assign(self, node: ast.Assign | ast.AnnAssign | ast.AugAssign, scope: Scope) -> None:
        if node.value is None:
            return
        value = self.value(node.value, scope)
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target in targets:
            if isinstance(node, ast.AugAssign):
                old = self.value(target, scope)
                value = self.augmented(node.op, old, value)
            self.put(target, value, scope)

    def put(self, target: ast.AST, value: Any, scope: Scope) -> None:
        """Assign to a name, an attribute or an item."""
        if isinstance(target, ast.Attribute):
            owner = self.value(target.value, scope)
            self.set_attribute(owner, target.attr, value, target.lineno, ast.unparse(target))
        elif isinstance(target, ast.Subscript):
            owner, key = self.value(target.value, scope), self.value(target.slice, scope)
            self.set_item(owner, key, value, target.lineno, ast.unparse(target))
        elif isinstance(target, ast.Tuple | ast.List):
            several = isinstance(value, list | tuple) and len(value) == len(target.elts)
            same = isinstance(value, Thing) and value.kind in ("part", "data")
            for place, one in enumerate(target.elts):
                self.put(one, value[place] if several else value if same else UNKNOWN, scope)
        else:
            bind(target, value, scope)

    def augmented(self, operator: ast.operator, old: Any, value: Any) -> Any:
        """The value of `old += value`."""
        return calculate(operator, old, value)

    def set_attribute(self, owner: Any, name: str, value: Any, line: int, text: str) -> None:
        """Assign to an attribute."""
        raise NotImplementedError

    def set_item(self, owner: Any, key: Any, value: Any, line: int, text: str) -> None:
        """Assign to an item."""
        raise NotImplementedError

    def _branch(self, node: ast.If, scope: Scope) -> str:
        test = self.value(node.test, scope)
        if test is not UNKNOWN:
            self.decided(node, scope)
            return self.block(node.body if truth(test) else node.orelse, scope)
        return self._maybe(
            node.body, node.orelse, scope, node.lineno, ast.unparse(node.test)[:SHOWN]
        )

    def decided(self, node: ast.If, scope: Scope) -> None:
        """A branch whose condition is known."""

    def _maybe(self, body: Block, other: Block, scope: Scope, line: int, test: str) -> str:
        """Follow both branches of a condition that is not known, and join the names."""
        before = dict(scope.names)
        self.unsure.append((line, test))
        ends, after = [], []
        for part in (body, other):
            scope.names = dict(before)
            ends.append(self.block(part, scope))
            after.append(scope.names)
        self.unsure.pop()
        going = [names for names, end in zip(after, ends, strict=True) if end == NEXT]
        if not going:
            scope.names = after[0]
            return ends[0] if ends[0] == ends[1] else ENDED
        joined = dict(going[0])
        for name, value in going[-1].items():
            joined[name] = merged(joined[name], value) if name in joined else value
        scope.names = joined
        return NEXT

    def _loop(self, node: ast.For | ast.AsyncFor | ast.While, scope: Scope) -> str:
        if isinstance(node, ast.While):
            self.value(node.test, scope)
            ended = self.block(node.body, scope)
            return ended if ended == ENDED and isinstance(node.test, ast.Constant) else NEXT
        source = self.value(node.iter, scope)
        known = isinstance(source, list | tuple) and len(source) <= LONGEST
        self.contexts.append(f"for {ast.unparse(node.iter)}")
        for one in source if known else [element(source)]:
            bind(node.target, one, scope)
            if self.block(node.body, scope) == ENDED and known:
                break
        self.contexts.pop()
        return self.block(node.orelse, scope)

    def _with(self, node: ast.With | ast.AsyncWith, scope: Scope) -> str:
        for one in node.items:
            value = self.value(one.context_expr, scope)
            self.contexts.append(ast.unparse(one.context_expr))
            if one.optional_vars is not None:
                self.put(one.optional_vars, value, scope)
        ended = self.block(node.body, scope)
        del self.contexts[len(self.contexts) - len(node.items) :]
        return ended

    def _define(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, scope: Scope
    ) -> None:
        if not isinstance(node, ast.ClassDef):
            function: Any = Function(node, scope)
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
                for target in targets:
                    if isinstance(target, ast.Name):
                        value = self._default(one.value, inner)
                        inner.put(target.id, value)
                        made.fields[target.id] = value
                        made.lines[target.id] = one.lineno
            elif isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef):
                self.found.functions.append(Function(one, scope, made))
        scope.put(node.name, made)
        self.found.classes.append(made)

    def _default(self, node: ast.AST | None, scope: Scope) -> Any:
        """The default of a dataclass's field."""
        if isinstance(node, ast.Call) and _last(node.func) in ("field", "HfArg", "Field"):
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
        return {"list": [], "dict": {}, "set": []}.get(_last(node), UNKNOWN)

    def decorated(self, node: ast.AST, function: Any, scope: Scope) -> Any:
        """A function under a decorator: itself."""
        return function

    def _import(self, node: ast.Import | ast.ImportFrom, scope: Scope) -> None:
        if isinstance(node, ast.Import):
            for one in node.names:
                self.found.imports.add(one.name)
                name = one.asname or one.name.partition(".")[0]
                scope.put(name, Imported(one.name if one.asname else name))
            return
        module = "." * node.level + (node.module or "")
        self.found.imports |= {module, *(one.name for one in node.names)}
        own = self._module(module)
        for one in node.names:
            if own is not None and one.name == "*":
                scope.names |= own.names
            elif own is not None and own.get(one.name) is not UNKNOWN:
                scope.put(one.asname or one.name, own.get(one.name))
            else:
                scope.put(one.asname or one.name, Imported(f"{module}.{one.name}"))

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

    # Functions of the script.

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
        result = values[0] if values else None
        for one in values[1:]:
            result = merged(result, one)
        return result

    def _parameters(
        self, node: Any, function: Function, arguments: Arguments, scope: Scope
    ) -> None:
        places = [one.arg for one in (*node.args.posonlyargs, *node.args.args)]
        defaults = dict(zip(reversed(places), reversed(node.args.defaults), strict=False))
        pairs = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
        defaults |= {one.arg: default for one, default in pairs if default is not None}
        every = [*places, *(one.arg for one in node.args.kwonlyargs)]
        for name in every:
            default = defaults.get(name)
            value = self.value(default, function.scope) if default is not None else UNKNOWN
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


def _last(node: ast.AST) -> str:
    """The last part of a name."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


__all__ = ["Interpreter", "arguments_of", "parse"]
