"""Reads a script: what each call, attribute and assignment means for the run."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

from ...runfile.text.errors import InputError
from ..reading.named_files import NamedFiles
from .definitions import SHOWN
from .expressions import arguments_of, last_name
from .host_calls import FILE_TESTS, HostCalls
from .library import ON_HOST
from .methods import METHODS, call_method
from .operations import dictionary_method, list_method, text_method, truth
from .parsers import call_parser, click_option, declare
from .record import FREE, HONOURED, LIMIT, UNCLEAR, Line, ScriptRecord
from .rows import row
from .unknown_calls import LENGTHS, look_through, note_lengths, other_call
from .values import (
    UNKNOWN,
    Arguments,
    Imported,
    Scope,
    ScriptClass,
    ScriptFunction,
    Thing,
    is_thing,
)

LOSSES = ("log_softmax", "softmax", "gather", "float", "logsumexp", "exp", "log")
OWN_LOSS = "a loss of one's own may keep other tensors than the model's"
NOT_REACHED = "with these options the script does not reach it"
MODULES = {"Module", "PreTrainedModel", "LightningModule", "Sequential"}


def read_script(
    text: str,
    path: str,
    files: NamedFiles,
    given: Mapping[str, Any],
    environment: Mapping[str, str],
    num_gpus: int,
    words: Sequence[str] = (),
) -> ScriptRecord:
    """What a script does, with the options that its command gives."""
    reader = ScriptReader(path, files, given, environment, num_gpus)
    reader.words = list(words)
    try:
        found = reader.run(text)
        reader.look_into_the_rest()
    except RecursionError:
        raise InputError(f"{path} is nested too deeply to be read") from None
    return found


class ScriptReader(HostCalls):
    """Follows a script, with the tables of calls."""

    bare: ast.AST | None = None  # the call whose result nobody takes

    def look_into_the_rest(self) -> None:
        """Look for lengths in functions that nothing calls, such as those of a collator."""
        for one in self.found.functions:
            if id(one.node) not in self.entered:
                bound = one.bound
                self.quiet, self.called = True, isinstance(bound, ScriptClass) and bound.made
                if isinstance(bound, ScriptClass):
                    bound = Thing(kind="instance", name=bound.name, values=dict(bound.fields))
                self.follow(ScriptFunction(one.node, one.scope, bound), Arguments())
        self.quiet = False

    def length(self, node: ast.AST | None, scope: Scope) -> None:
        """Note the tokens that sequences are cut to, where a name of the script says so."""
        name = last_name(node).lower() if node is not None else ""
        value = self.value(node, scope) if name in LENGTHS else UNKNOWN
        if isinstance(value, int) and value > 0:
            assert isinstance(node, ast.expr)
            self.note_length(node.lineno, value, named=True)
            self.found.lines.append(Line(node.lineno, name, HONOURED, "tokens of a sequence"))

    def statement(self, node: ast.stmt, scope: Scope) -> str:
        """Follow one statement."""
        self.bare = node.value if isinstance(node, ast.Expr) else None
        return super().statement(node, scope)

    def decided(self, node: ast.If, scope: Scope) -> None:
        """A branch that the command's options or the script's constants decide."""
        text = ast.unparse(node.test)
        if "__name__" not in text:
            why = "the branch that is taken is followed"
            if not self.quiet:
                self.found.lines.append(Line(node.lineno, f"if {text}"[:SHOWN], HONOURED, why))
            for one in node.orelse if truth(self.value(node.test, scope)) else node.body:
                self._not_reached(one)

    def _not_reached(self, statement: ast.stmt) -> None:
        """Account for the lines of a branch that is not taken."""
        parts = [one for one in ast.walk(statement) if isinstance(one, ast.keyword | ast.stmt)]
        lines = {one.value.lineno if isinstance(one, ast.keyword) else one.lineno for one in parts}
        for line in sorted(lines):
            self.seen(line, "this line", FREE, NOT_REACHED)

    # Calls.

    def call(self, node: ast.Call, scope: Scope) -> Any:
        """The value of a call."""
        self.steps += 1
        bare = node is self.bare
        if isinstance(node.func, ast.Attribute):
            base = self.value(node.func.value, scope)
            arguments = arguments_of(self, node, scope, _shown(node))
            if isinstance(base, ScriptFunction) and node.func.attr == "__get__":
                return base
            if isinstance(base, Thing | str | dict | list) or base is UNKNOWN:
                return self._method(base, node.func.attr, arguments)
            called = self.attribute(base, node.func.attr)
        else:
            called = self.value(node.func, scope)
            arguments = arguments_of(self, node, scope, _shown(node))
        if isinstance(called, ScriptFunction):
            return self._follow(called, arguments)
        if isinstance(called, ScriptClass):
            return self.instance(called, arguments)
        if isinstance(called, Imported):
            return self.library(called, arguments, bare=bare)
        if isinstance(called, Thing):
            return self._called(called, arguments)
        return other_call(self, called, arguments)

    def _follow(self, function: ScriptFunction, arguments: Arguments) -> Any:
        """Call a function of the script; click fills the options of one that is called bare."""
        bare = not arguments.positional and not arguments.named and not arguments.is_open
        if bare and self.found.facts.get("click"):
            arguments = Arguments(named=declare(self, function), line=arguments.line)
        before = len(self.found.lines)
        result = self.follow(function, arguments)
        if len(self.found.lines) > before:
            why = "its lines are followed"
            found = Line(arguments.line, arguments.text, HONOURED, why, more=arguments.more)
            self.found.lines.append(found)
        return result

    def _called(self, thing: Thing, arguments: Arguments) -> Any:
        """An object that is called: a tokenizer, a model, an instance."""
        if thing.kind == "model":
            if any("no_grad" in one or "inference_mode" in one for one in self.contexts):
                self.found.facts["evaluates"] = arguments.line
            return call_method(self, thing, "__call__", arguments)
        if thing.kind == "part":
            return thing
        if thing.kind in ("tokenizer", "data", "loader"):
            note_lengths(self, arguments)
            self.note(arguments, "how long sequences are", HONOURED)
            return Thing(kind="data", name="tokens", line=arguments.line)
        if thing.kind == "instance":
            module = thing.made_of is not None and thing.made_of.roots & MODULES
            return self._method(thing, "forward" if module else "__call__", arguments)
        if thing.kind == "output":
            return thing
        if thing.kind == "app":
            for one in thing.values.get("commands", ()):
                self.follow(one, Arguments(named=declare(self, one)))
            return UNKNOWN
        return other_call(self, thing, arguments)

    def _method(self, base: Any, name: str, arguments: Arguments) -> Any:
        """A method of an object or of a plain value."""
        if isinstance(base, str) and name in FILE_TESTS:
            return self.on_disk(name, base)
        if isinstance(base, str) and name in ("resolve", "absolute", "expanduser", "as_posix"):
            return base
        if isinstance(base, str):
            return text_method(base, name, arguments.positional, arguments.named)
        if isinstance(base, dict):
            if name == "update":
                base.update(arguments.named)
                self.item_lines(base).update(arguments.lines)
                for one in arguments.positional:
                    self.item_lines(base).update(self.item_lines(one))
            return dictionary_method(base, name, arguments.positional)
        if isinstance(base, list):
            if name in ("add", "append") and self._names_linear_layers():
                arguments.positional = [Thing(kind="linear", name="linear layers")]
            return list_method(base, name, arguments.positional)
        if base is UNKNOWN:
            if name == "backward":
                self.found.facts["backward"] = arguments.line
                self.found.facts.setdefault("own loss", arguments.line)
            return other_call(self, Imported(f"?.{name}"), arguments)
        return self._thing_method(base, name, arguments)

    def _names_linear_layers(self) -> bool:
        """Whether this is the usual loop over modules that gathers names of linear layers."""
        modules = any("named_modules" in one for one in self.contexts)
        return modules and any("isinstance" in test for _, test in self.unsure)

    def _thing_method(self, base: Thing, name: str, arguments: Arguments) -> Any:
        if base.kind in METHODS:
            return call_method(self, base, name, arguments)
        if base.kind == "parser":
            return call_parser(self, base, name, arguments)
        if base.kind == "output" and name == "backward":
            own = base.values.get("own")
            self.found.facts["backward"] = arguments.line
            self.found.facts["loader"] = self.loaders[-1] if self.loaders else None
            self.found.facts["own loss" if own else "model loss"] = arguments.line
            return None
        if base.kind == "output":
            if name in ("item", "cpu", "tolist", "numpy"):
                return UNKNOWN
            if name in LOSSES:
                bound = "8*logits"  # as for a function of torch
                self.seen(arguments.line, arguments.text, LIMIT, OWN_LOSS, adds=bound, saves=False)
            return base
        if base.kind == "scaler":
            self.found.facts["scaler"] = arguments.line
            return arguments.first if name == "scale" else UNKNOWN
        if base.kind in ("tokenizer", "data", "loader"):
            note_lengths(self, arguments)
            look_through(self, arguments)
            self.note(arguments, ON_HOST, FREE)
            return Thing(kind="data", name=base.name, line=arguments.line)
        if base.kind == "instance":
            return self._instance_method(base, name, arguments)
        if base.kind in ("arguments", "config"):
            return self._read_method(base, name, arguments)
        if base.kind == "app":
            return base
        if base.kind == "namespace" and name in ("get", "pop") and arguments.positional:
            default = arguments.get("default", 1)
            return base.values.get(str(arguments.positional[0]), default)
        return UNKNOWN

    def _instance_method(self, base: Thing, name: str, arguments: Arguments) -> Any:
        if (method := base.method(name)) is not None:
            return self._follow(method, arguments)
        stored = base.values.get(name)
        if isinstance(stored, ScriptFunction):
            return self.follow(stored, arguments)
        if isinstance(stored, Thing):
            return self._called(stored, arguments)
        module = base.made_of is not None and base.made_of.roots & MODULES
        known = row("model", name) is not None or name in METHODS["model"]
        return base if module and known else UNKNOWN

    def _read_method(self, base: Thing, name: str, arguments: Arguments) -> Any:
        """A method of the trainer's arguments or of a configuration; most read it."""
        if name == "update" and isinstance(arguments.first, dict):
            for key, value in arguments.first.items():
                self.set_attribute(base, key, value, arguments.line, f"{arguments.text}: {key}")
            return None
        if base.kind == "arguments" and name not in ("save_pretrained",):
            known = row("arguments", name)
            effect = (FREE, known.why) if known else (UNCLEAR, "not understood")
            self.seen(arguments.line, arguments.text, *effect)
        return UNKNOWN

    def decorated(self, node: ast.expr, function: Any, scope: Scope) -> Any:
        """Decorators of click and typer make the function's parameters options."""
        if ast.unparse(node).startswith(("torch.no_grad", "torch.inference_mode")):
            self.seen(node.lineno, "@torch.no_grad", FREE, "without gradients nothing is saved")
        if not isinstance(node, ast.Call):
            return function
        called = self.value(node.func, scope)
        arguments = arguments_of(self, node, scope, _shown(node))
        if isinstance(called, Imported) and called.package == "click":
            self.found.facts["click"] = True
            click_option(self, called, arguments)
        elif isinstance(node.func, ast.Attribute):
            owner = self.value(node.func.value, scope)
            if is_thing(owner, "app"):
                owner.values.setdefault("commands", []).append(function)
        return function


def _shown(node: ast.Call) -> str:
    """A call as a sentence shows it: without long arguments."""
    text = ast.unparse(node)
    return text if len(text) <= SHOWN else f"{ast.unparse(node.func)[: SHOWN - 5]}(...)"
