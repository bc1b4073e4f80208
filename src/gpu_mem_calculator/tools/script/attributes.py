"""Follows a script's statements in their order, from the top of the file into its functions.

Branches whose condition the command decides are followed alone; of the others both are, and a
limit names the condition. Loops are followed once for each item that the text shows, else once.
Attributes and items of a script's objects: what they are, and what an assignment changes.
"""

from __future__ import annotations

import ast
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from ..translation.arguments import argument_table, tables
from .definitions import SHOWN, Block, ScriptWorld, parse
from .expressions import bind, element, is_dtype, merged, unpacked
from .methods import set_attribute
from .operations import calculate, truth
from .record import FREE, HONOURED, LIMIT, UNCLEAR, ScriptRecord
from .rows import is_plain_package
from .unknown_calls import LENGTHS
from .values import TRACKED, UNKNOWN, Imported, Scope, ScriptClass, ScriptFunction, Thing, is_thing

MOST_STEPS = 100_000  # statements and calls that are followed
LONGEST = 64  # items of a list that are gone through
# After a block: go on, leave the loop, leave the function.
NEXT, LEFT, ENDED = "next", "left", "ended"
TRAINER_TABLE = "transformers/arguments"
ACCOUNTED = (*TRACKED, "accelerator", "arguments", "config")
# Values on the run's machine, with the versions that are modelled.
KNOWN_NAMES: Mapping[str, Any] = tables(__file__)["known_names"]
ACCELERATOR: Mapping[str, Any] = tables(__file__)["accelerator"]
ARGUMENTS: Mapping[str, Any] = tables(__file__)["arguments"]
OF_TENSORS = ("shape", "dtype", "device", "ndim", "requires_grad")
ENUMS = ("TaskType", "IntervalStrategy", "SchedulerType", "OptimizerNames", "EvaluationStrategy")


class Interpreter(ScriptWorld):
    """Follows a script, with its attributes and items."""

    words: list[str]  # sys.argv

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
                value = calculate(node.op, self.value(target, scope), value)
            self.put(target, value, scope)

    def put(self, target: ast.AST, value: Any, scope: Scope) -> None:
        """Assign to a name, an attribute or an item; a name may say the length of a sequence."""
        if isinstance(target, ast.Attribute):
            owner = self.value(target.value, scope)
            self.set_attribute(owner, target.attr, value, target.lineno, ast.unparse(target))
        elif isinstance(target, ast.Subscript):
            owner, key = self.value(target.value, scope), self.value(target.slice, scope)
            self.set_item(owner, key, value, target.lineno, ast.unparse(target))
        elif isinstance(target, ast.Tuple | ast.List):
            for one, each in zip(target.elts, unpacked(value, len(target.elts)), strict=True):
                self.put(one, each, scope)
        else:
            bind(target, value, scope)
        name = target.id.lower() if isinstance(target, ast.Name) else ""
        if name in LENGTHS and isinstance(value, int) and value > 0:
            self.note_length(getattr(target, "lineno", 0), int(value), named=True)

    def _branch(self, node: ast.If, scope: Scope) -> str:
        test = self.value(node.test, scope)
        if test is not UNKNOWN:
            self.decided(node, scope)
            return self.block(node.body if truth(test) else node.orelse, scope)
        text = ast.unparse(node.test)[:SHOWN]
        return self._maybe(node.body, node.orelse, scope, node.lineno, text)

    @abstractmethod
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
        first, last = going[0], going[-1]
        both = {name: merged(first[name], last[name]) for name in first.keys() & last.keys()}
        scope.names = {**first, **last, **both}
        return NEXT

    def _loop(self, node: ast.For | ast.AsyncFor | ast.While, scope: Scope) -> str:
        if isinstance(node, ast.While):
            self.value(node.test, scope)
            ended = self.block(node.body, scope)
            return ended if ended == ENDED and isinstance(node.test, ast.Constant) else NEXT
        source = self.value(node.iter, scope)
        known = isinstance(source, list | tuple) and len(source) <= LONGEST
        self.contexts.append(f"for {ast.unparse(node.iter)}")
        loads = is_thing(source, "loader")
        if loads:
            self.loaders.append(source)
        for one in source if known else [element(source)]:
            bind(node.target, one, scope)
            if self.block(node.body, scope) == ENDED and known:
                break
        self.contexts.pop()
        if loads:
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

    def attribute(self, base: Any, name: str) -> Any:
        """The value of an attribute."""
        if isinstance(base, Imported):
            path = f"{base.path}.{name}"
            if path == "sys.argv":
                return self.words
            if path in KNOWN_NAMES:
                return KNOWN_NAMES[path]
            if base.last in ENUMS:
                return name if base.last == "TaskType" else name.lower()
            return name if is_dtype(path) else Imported(path)
        if isinstance(base, Mapping):
            return base.get(name, UNKNOWN)
        if isinstance(base, ScriptClass):
            if name in base.fields:
                return base.fields[name]
            if (node := base.method(name)) is not None:
                return ScriptFunction(node, base.scope)
            return Imported(f"script.{next(iter(sorted(base.roots)), base.name)}.{name}")
        if isinstance(base, Thing):
            return self._thing_attribute(base, name)
        if base is UNKNOWN and name in self.given:  # an object of a file that is not at hand
            return self.given[name]
        return UNKNOWN

    def _thing_attribute(self, base: Thing, name: str) -> Any:
        if base.kind == "model":
            return self._model_attribute(base, name)
        if base.kind == "part":
            return UNKNOWN if name in OF_TENSORS else base
        if base.kind == "trainer" and name in ("accelerator", "state", "optimizer", "lr_scheduler"):
            return Thing(kind="accelerator" if name == "accelerator" else "data", name=name)
        if base.kind == "accelerator":
            return self.num_gpus if name == "num_processes" else ACCELERATOR.get(name, UNKNOWN)
        if base.kind == "output":
            return base
        if base.kind == "arguments" and name not in base.values:
            if name == "world_size":
                return self.num_gpus
            row = argument_table(TRAINER_TABLE).get(name)
            return ARGUMENTS.get(name, row.default if row is not None else UNKNOWN)
        if base.kind == "instance" and name not in base.values:
            return base.method(name) or UNKNOWN
        if base.kind in ("data", "loader", "tokenizer"):
            known = name not in ("pad_token", "eos_token")
            return Thing(kind="data", name=name) if known else UNKNOWN
        return base.values.get(name, UNKNOWN)

    def _model_attribute(self, base: Thing, name: str) -> Any:
        if name == "config":
            default = Thing(kind="config", name="config", model=base, line=base.line)
            return base.values.setdefault("(config)", default)
        if name == "module":
            return base
        if name in ("dtype", "device", "is_gradient_checkpointing"):
            return UNKNOWN
        if name == "generation_config":
            return Thing(kind="data", name=name)
        return Thing(kind="part", name=f"{base.name}.{name}", model=base, line=base.line)

    def set_attribute(self, owner: Any, name: str, value: Any, line: int, text: str) -> None:
        """Assign to an attribute."""
        text = text[:SHOWN]
        if isinstance(owner, Imported):
            plain = is_plain_package(owner.package) or owner.path.startswith("torch.backends")
            if plain or owner.path.startswith("transformers.logging"):
                self.seen(line, text, FREE, "a setting of speed or of logging")
            else:
                self.seen(line, text, UNCLEAR, "not understood: it replaces a part of a library")
        elif not isinstance(owner, Thing):
            return
        elif owner.kind in ("arguments", "peft", "quantization", "namespace", "instance"):
            owner.values[name] = value
            owner.lines[name] = line
            if owner.kind in ("arguments", "peft", "quantization"):
                self.found.conditions |= dict(self.unsure)
            if name.lower() in LENGTHS and isinstance(value, int) and value > 0:
                self.note_length(line, int(value), named=True)
        elif owner.kind == "tokenizer":
            if name in ("model_max_length", "max_length") and isinstance(value, int):
                self.note_length(line, value)
            self.seen(line, text, FREE, "texts and their tokens are on the host")
        elif owner.kind in ACCOUNTED:
            set_attribute(self, owner, name, value, line, text)

    def set_item(self, owner: Any, key: Any, value: Any, line: int, text: str) -> None:
        """Assign to an item of a dictionary, of the environment, of a tensor."""
        if isinstance(owner, dict) and isinstance(key, str | int):
            owner[key] = value
            self.item_lines(owner)[str(key)] = line
        elif is_thing(owner, "part"):
            self.seen(line, text, FREE, "values are written into a tensor that is there")
        elif isinstance(owner, Imported) and owner.path == "os.environ" and isinstance(key, str):
            self._variable(key, value, line, text)
        elif is_thing(owner, "namespace", "instance"):
            owner.values[str(key)] = value

    def _variable(self, key: str, value: Any, line: int, text: str) -> None:
        """A variable of the process."""
        self.environment = {**self.environment, key: str(value)}
        if key in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "CUBLAS_WORKSPACE_CONFIG"):
            self.found.facts.setdefault("environment", {})[key] = value
            self.seen(line, text, HONOURED)
        elif key in ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"):
            several = isinstance(value, str) and "," in value
            why = "the script chooses several GPUs itself; one of them is estimated"
            self.seen(line, text, *((LIMIT, why) if several else (HONOURED,)))
        elif key.startswith(("ACCELERATE_", "FSDP_", "DEEPSPEED_")):
            self.seen(line, text, UNCLEAR, "not understood: it sets up the launch")
        else:
            self.seen(line, text, FREE, "a variable of libraries, without tensors")
