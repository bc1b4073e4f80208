"""Follows a script's statements in their order, from the top of the file into its functions.

Branches whose condition the command decides are followed alone; of the others both are, and a
limit names the condition. Loops are followed once for each item that the text shows, else once.
"""

from __future__ import annotations

import ast
from abc import abstractmethod
from typing import Any

from .definitions import SHOWN, Block, Definitions, parse
from .expressions import bind, element, merged
from .operations import calculate, truth
from .record import ScriptRecord
from .values import UNKNOWN, Scope, Thing

MOST_STEPS = 100_000  # statements and calls that are followed
LONGEST = 64  # items of a list that are gone through
NEXT, LEFT, ENDED = (
    "next",
    "left",
    "ended",
)  # after a block: go on, leave the loop, leave the function


class Interpreter(Definitions):
    """One script, with the values that its command gives."""

    def run(self, text: str) -> ScriptRecord:
        """Follow the whole text."""
        scope = Scope(names={"__name__": "__main__"})
        self.found.tree = parse(text, self.path)
        self.block(self.found.tree.body, scope)
        return self.found

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
            self.define(node, scope)
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
            self.import_names(node, scope)
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

    @abstractmethod
    def set_attribute(self, owner: Any, name: str, value: Any, line: int, text: str) -> None:
        """Assign to an attribute."""

    @abstractmethod
    def set_item(self, owner: Any, key: Any, value: Any, line: int, text: str) -> None:
        """Assign to an item."""

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
        if isinstance(source, Thing) and source.kind == "loader":
            self.loaders.append(source)
        for one in source if known else [element(source)]:
            bind(node.target, one, scope)
            if self.block(node.body, scope) == ENDED and known:
                break
        self.contexts.pop()
        if isinstance(source, Thing) and source.kind == "loader":
            self.loaders.pop()
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
