"""Reads a script: what each call, attribute and assignment means for the run."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

from ...programs.translation.arguments import argument_table
from ..reading.named_files import NamedFiles
from .expressions import arguments_of, is_dtype
from .interpreter import SHOWN, Interpreter
from .library import (
    ARGUMENT_CLASS,
    FREE_TORCH,
    LENGTHS,
    call_library,
    changes_elsewhere,
    look_through,
    make_arguments,
    make_trainer,
    note_lengths,
    other_call,
)
from .methods import METHODS, call_method, set_attribute
from .operations import (
    builtin,
    dictionary_method,
    list_method,
    path_function,
    text_method,
    truth,
)
from .parsers import (
    PARSERS,
    call_parser,
    click_option,
    declare,
    instance,
    make_parser,
    peft_config,
    quantization_config,
)
from .record import FREE, HONOURED, LIMIT, UNCLEAR, Found, Line
from .rows import is_plain_package, row
from .values import TRACKED, UNKNOWN, Arguments, Function, Imported, Scope, ScriptClass, Thing

ENTRIES = ("fire.Fire", "typer.run", "defopt.run", "jsonargparse.CLI", "absl.app.run", "app.run")
TRAINER_TABLE = "transformers/arguments"
ACCOUNTED = (*TRACKED, "accelerator", "arguments", "config")
# Attributes of libraries, and what they are on the run's machine.
SUPPORTED = "the card computes in bf16"
KNOWN_CALLS: Mapping[str, Any] = {
    "torch.backends.mps.is_available": False,
    "torch.xpu.is_available": False,
    "torch.backends.cuda.is_built": True,
    "torch.cuda.is_available": True,
    "torch.cuda.current_device": 0,
    "torch.distributed.is_initialized": UNKNOWN,
    "torch.distributed.get_rank": 0,
    "accelerate.PartialState.process_index": 0,
}
ABILITIES = ("is_bf16_supported", "is_torch_bf16_gpu_available", "is_torch_bf16_available")
# Values on the run's machine, with the versions that are modelled.
KNOWN_NAMES: Mapping[str, Any] = {
    "sys.argv": (), "sys.platform": "linux", "torch.__version__": "2.13.0", "os.name": "posix",
    "transformers.__version__": "5.17.0", "peft.__version__": "0.21.2", "trl.__version__": "1.16.0",
}  # fmt: skip
LOSSES = ("log_softmax", "softmax", "gather", "float", "logsumexp", "exp", "log")
OWN_LOSS = "a loss of one's own may keep other tensors than the model's"
NOT_REACHED = "with these options the script does not reach it"
MODULES = {"Module", "PreTrainedModel", "LightningModule", "Sequential"}
ENUMS = ("TaskType", "IntervalStrategy", "SchedulerType", "OptimizerNames", "EvaluationStrategy")
FILE_TESTS = ("exists", "isdir", "isfile", "is_dir", "is_file", "glob", "iterdir", "listdir")
AUTOCAST = ("torch.autocast", "torch.cuda.amp.autocast", "torch.amp.autocast")
HALF = ("bfloat16", "float16")
FILE_READERS = ("safe_load", "load", "full_load", "loads", "to_object", "to_container")


def read_script(
    text: str,
    path: str,
    files: NamedFiles,
    given: Mapping[str, Any],
    environment: Mapping[str, str],
    num_gpus: int,
    words: Sequence[str] = (),
) -> Found:
    """What a script does, with the options that its command gives."""
    reader = ScriptReader(path, files, given, environment, num_gpus)
    reader.words = list(words)
    try:
        found = reader.run(text)
        reader.look_into_the_rest()
    except RecursionError:
        from ...core.errors import InputError

        raise InputError(f"{path} is nested too deeply to be read") from None
    return found


class ScriptReader(Interpreter):
    """Follows a script, with the tables of calls."""

    bare: ast.AST | None = None  # the call whose result nobody takes
    words: list[str] = []  # sys.argv
    quiet = False  # whether a function is looked through that nothing calls

    def seen(self, line: int, what: str, effect: str, why: str = "", **bounds: Any) -> None:
        """Account for a call or an assignment, unless nothing calls it."""
        if not self.quiet:
            super().seen(line, what, effect, why, **bounds)

    def note(self, arguments: Arguments, why: str, effect: str) -> None:
        """Account for a call on data, and for each of its arguments by its own line."""
        for line in {arguments.line, *arguments.lines.values(), *arguments.places}:
            self.found.lines.append(Line(line, arguments.text, effect, why))

    def make(self, thing: Thing) -> Thing:
        """Keep an object that was made, unless nothing calls for it."""
        return thing if self.quiet else super().make(thing)

    def look_into_the_rest(self) -> None:
        """Look for lengths in functions that nothing calls, such as those of a collator."""
        self.quiet = True
        for one in self.found.functions:
            if id(one.node) not in self.entered:
                bound = one.bound
                if isinstance(bound, ScriptClass):
                    bound = Thing(kind="instance", name=bound.name, values=dict(bound.fields))
                self.follow(Function(one.node, one.scope, bound), Arguments())
        self.quiet = False

    def put(self, target: ast.AST, value: Any, scope: Scope) -> None:
        """Assign; a name that says the length of a sequence is noted."""
        super().put(target, value, scope)
        name = target.id.lower() if isinstance(target, ast.Name) else ""
        if name in LENGTHS and isinstance(value, int) and value > 0:
            assert isinstance(target, ast.Name)
            self.found.facts.setdefault("lengths", {})[target.lineno] = int(value)

    def length(self, node: ast.AST | None, scope: Scope) -> None:
        """Note the tokens that sequences are cut to, where a name of the script says so."""
        name = getattr(node, "attr", getattr(node, "id", "")).lower()
        value = self.value(node, scope) if name in LENGTHS else UNKNOWN
        if isinstance(value, int) and value > 0:
            assert isinstance(node, ast.expr)
            self.found.facts.setdefault("lengths", {})[node.lineno] = value
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
            self.seen(node.lineno, f"if {text}", HONOURED, why)
            for one in node.orelse if truth(self.value(node.test, scope)) else node.body:
                self._not_reached(one)

    def _not_reached(self, statement: ast.stmt) -> None:
        """Account for the lines of a branch that is not taken."""
        lines = {statement.lineno}
        for one in ast.walk(statement):
            if isinstance(one, ast.keyword | ast.stmt):
                lines.add(one.value.lineno if isinstance(one, ast.keyword) else one.lineno)
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
            if isinstance(base, Function) and node.func.attr == "__get__":
                return base
            if isinstance(base, Thing | str | dict | list) or base is UNKNOWN:
                return self._method(base, node.func.attr, arguments)
            called = self.attribute(base, node.func.attr)
        else:
            called = self.value(node.func, scope)
            arguments = arguments_of(self, node, scope, _shown(node))
        if isinstance(called, Function):
            return self._follow(called, arguments)
        if isinstance(called, ScriptClass):
            return self._instance(called, arguments)
        if isinstance(called, Imported):
            return self._library(called, arguments, bare=bare)
        if isinstance(called, Thing):
            return self._called(called, arguments)
        return other_call(self, called, arguments)

    def _follow(self, function: Function, arguments: Arguments) -> Any:
        """Call a function of the script; click fills the options of one that is called bare."""
        if not arguments.positional and not arguments.named and not arguments.is_open:
            if self.found.facts.get("click"):
                arguments = Arguments(named=declare(self, function), line=arguments.line)
        before = len(self.found.lines)
        result = self.follow(function, arguments)
        if len(self.found.lines) > before:
            why = "its lines are followed"
            self.found.lines.append(
                Line(arguments.line, arguments.text, HONOURED, why, more=arguments.more)
            )
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
            made = thing.values.get("(class)")
            module = isinstance(made, ScriptClass) and made.roots & MODULES
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
            return self._on_disk(name, base)
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

    def _on_disk(self, name: str, path: Any) -> Any:
        """Whether a file is where the command would be started; folders of old runs are not
        looked through.
        """
        folder = self.files.folder
        if not isinstance(path, str) or folder is None:
            return UNKNOWN
        try:
            there = (folder / path).exists()
        except (OSError, ValueError):
            return UNKNOWN
        if name in ("glob", "iterdir", "listdir"):
            return UNKNOWN if there else []
        return there

    def _thing_method(self, base: Thing, name: str, arguments: Arguments) -> Any:
        if base.kind in ("model", "part", "trainer", "optimizer", "accelerator"):
            return call_method(self, base, name, arguments)
        if base.kind == "parser":
            return call_parser(self, base, name, arguments)
        if base.kind == "output" and name == "backward":
            own = base.values.get("own")
            self.found.facts["backward"] = arguments.line
            self.found.facts["own loss" if own else "model loss"] = arguments.line
            return None
        if base.kind == "output":
            if name in LOSSES:
                self.seen(arguments.line, arguments.text, LIMIT, OWN_LOSS)
                base.values["own"] = True
            return base
        if base.kind == "scaler":
            self.found.facts["scaler"] = arguments.line
            return arguments.positional[0] if name == "scale" and arguments.positional else UNKNOWN
        if base.kind in ("tokenizer", "data", "loader"):
            note_lengths(self, arguments)
            look_through(self, arguments)
            self.note(arguments, "texts and their tokens are on the host", FREE)
            return Thing(kind="data", name=base.name, line=arguments.line)
        if base.kind == "instance":
            method = base.values.get("(class)")
            node = method.method(name) if isinstance(method, ScriptClass) else None
            if node is not None:
                return self._follow(Function(node, method.scope, base), arguments)
            stored = base.values.get(name)
            if isinstance(stored, Function):
                return self.follow(stored, arguments)
            if isinstance(stored, Thing):
                return self._called(stored, arguments)
            if isinstance(method, ScriptClass) and method.roots & MODULES:
                call = row("model", name) is not None or name in METHODS["model"]
                return base if call else UNKNOWN
            return UNKNOWN
        if base.kind in ("arguments", "config"):
            return self._read_method(base, name, arguments)
        if base.kind == "app":
            return base
        if base.kind == "namespace" and name in ("get", "pop") and arguments.positional:
            default = arguments.get("default", 1)
            return base.values.get(str(arguments.positional[0]), default)
        return UNKNOWN

    def _read_method(self, base: Thing, name: str, arguments: Arguments) -> Any:
        """A method of the trainer's arguments or of a configuration; most read it."""
        if name == "update" and arguments.positional and isinstance(arguments.positional[0], dict):
            for key, value in arguments.positional[0].items():
                self.set_attribute(base, key, value, arguments.line, f"{arguments.text}: {key}")
            return None
        if base.kind == "arguments" and name not in ("save_pretrained",):
            known = row("arguments", name)
            effect = (FREE, known.why) if known else (UNCLEAR, "not understood")
            self.seen(arguments.line, arguments.text, *effect)
        return UNKNOWN

    def _instance(self, made: ScriptClass, arguments: Arguments) -> Any:
        """An object of a class of the script."""
        roots = made.roots
        trainer = next((one for one in roots if one.endswith("Trainer")), "")
        if trainer:
            thing = make_trainer(self, trainer, made, arguments)
            paths = [one.path for one in made.bases if isinstance(one, Imported)]
            thing.values["path"] = paths[0] if paths else trainer
            thing.values["class"] = made
            return thing
        kind = next((one for one in roots if ARGUMENT_CLASS.fullmatch(one)), "")
        if kind:
            thing = make_arguments(self, kind, arguments)
            thing.lines = {**made.lines, **thing.lines}
            thing.values = {**made.fields, **thing.values}
            return thing
        return self._plain_instance(made, arguments)

    def _plain_instance(self, made: ScriptClass, arguments: Arguments) -> Thing:
        values = {**made.fields, "(class)": made}
        thing = Thing(kind="instance", name=made.name, line=arguments.line, values=values)
        if "TrainerCallback" in made.roots:
            thing.values["(callback)"] = True
        node = made.method("__init__")
        if node is not None:
            self.follow(Function(node, made.scope, thing), arguments)
        else:
            thing.values |= dict(zip(made.fields, arguments.positional, strict=False))
            thing.values |= arguments.named
            if made.fields and not made.roots:
                self.found.options |= {k: v for k, v in made.fields.items()}
        return thing

    def _library(self, called: Imported, arguments: Arguments, *, bare: bool) -> Any:
        """A function or class of a library."""
        path, name = called.path, called.last
        if called.package == "builtins":
            return self._builtin(name, arguments)
        if path in KNOWN_CALLS:
            return KNOWN_CALLS[path]
        if path == "torch.cuda.device_count":
            return self.num_gpus
        if name in ABILITIES:
            self.found.assumed.append(SUPPORTED)
            return True
        if path.endswith("get_device_capability"):
            self.found.assumed.append("the card is of compute capability 8.0 or higher")
            return (8, 0)
        if path in ("os.getenv", "os.environ.get", "os.environ.setdefault"):
            key = arguments.get("key", 0)
            return self.environment.get(str(key), arguments.get("default", 1))
        if path in ("torch.no_grad", "torch.inference_mode"):
            self.seen(arguments.line, arguments.text, FREE, "without gradients nothing is saved")
            return UNKNOWN
        if path in AUTOCAST:
            dtype = next((one for one in arguments.every() if one in HALF), "float16")
            self.found.facts["autocast"] = dtype
            self.seen(arguments.line, arguments.text, HONOURED)
            return UNKNOWN
        if path in ("pathlib.Path", "pathlib.PurePath") and len(arguments.positional) == 1:
            return arguments.positional[0]
        if name in FILE_TESTS and called.package in ("os", "glob"):
            return self._on_disk(name, arguments.get("path", 0))
        if path.startswith("os.path."):
            return path_function(name, arguments.positional)
        if name in PARSERS:
            self.found.facts.setdefault("parsers", set()).add(name)
            return make_parser(name, arguments)
        if path in ENTRIES and arguments.positional and isinstance(arguments.positional[0], Function):
            function = arguments.positional[0]
            return self.follow(function, Arguments(named=declare(self, function)))
        if path == "tyro.cli" and arguments.positional:
            return instance(self, arguments.positional[0], self.given, arguments.line)
        return self._more_library(called, arguments, bare=bare)

    def _more_library(self, called: Imported, arguments: Arguments, *, bare: bool) -> Any:
        path, name = called.path, called.last
        if name in FILE_READERS and called.package in ("yaml", "json", "toml", "omegaconf"):
            one = arguments.positional[0] if arguments.positional else UNKNOWN
            one = one.values.get("path", UNKNOWN) if isinstance(one, Thing) else one
            return self.data(one) if isinstance(one, str) else one
        if name == "get_peft_config" and called.package == "trl":
            return peft_config(arguments)
        if name == "get_quantization_config" and called.package == "trl":
            return quantization_config(arguments)
        if name == "get_kbit_device_map":
            return {"": 0}
        if name == "GradScaler":
            return Thing(kind="scaler", name=name, line=arguments.line)
        if path in ("typer.Typer", "click.group"):
            return Thing(kind="app", name=name)
        if path in ("typer.Option", "typer.Argument"):
            default = arguments.positional[0] if arguments.positional else arguments.get("default")
            return Thing(kind="option", values={"default": default})
        if path in ("copy.deepcopy", "copy.copy"):
            return self._copied(arguments)
        if path in ("argparse.Namespace", "types.SimpleNamespace"):
            return Thing(kind="namespace", name=name, values=dict(arguments.named))
        if path == "functools.partial" and arguments.positional:
            look_through(self, Arguments(positional=arguments.positional[:1], named=arguments.named))
            return arguments.positional[0]
        if path in ("accelerate.PartialState", "accelerate.state.PartialState"):
            return Thing(kind="accelerator", name=name, line=arguments.line)
        if bare and changes_elsewhere(called) and row("function", name) is None:
            touched = any(isinstance(one, Thing) and one.kind in TRACKED for one in arguments.every())
            if not touched and not FREE_TORCH.fullmatch(path):
                why = f"not understood: what {called.package} changes is not shown"
                self.seen(arguments.line, arguments.text, UNCLEAR, why)
                return UNKNOWN
        return call_library(self, called, arguments)

    def _copied(self, arguments: Arguments) -> Any:
        one = arguments.positional[0] if arguments.positional else UNKNOWN
        if isinstance(one, Thing) and one.kind == "model":
            values = {**one.values, "copied": arguments.line}
            return self.make(Thing(kind="model", name=one.name, line=arguments.line, values=values))
        return one

    def _builtin(self, name: str, arguments: Arguments) -> Any:
        """A function of Python itself."""
        values = arguments.positional
        one = values[0] if values else UNKNOWN
        if name == "super":
            return Thing(kind="super")
        if name == "open":
            return Thing(kind="file", values={"path": one})
        if name in ("getattr", "hasattr") and len(values) > 1:
            return self._has(name, one, values)
        if name == "setattr" and len(values) > 2:
            self.set_attribute(one, str(values[1]), values[2], arguments.line, arguments.text)
            return None
        if name == "map" and len(values) > 1 and isinstance(one, Function):
            return UNKNOWN
        if name in ("len", "sum", "enumerate", "list", "zip", "filter", "iter", "next", "reversed"):
            known = builtin(name, values, arguments.named)
            things = [each for each in values if isinstance(each, Thing)]
            if known is UNKNOWN and things and name not in ("len", "sum"):
                return things[0]
            return known
        if name in ("exec", "eval"):
            self.seen(arguments.line, arguments.text, UNCLEAR, "not understood: it runs a text")
            return UNKNOWN
        made = builtin(name, values, arguments.named)
        if name == "dict" and isinstance(made, dict):
            for each in values:
                self.item_lines(made).update(self.item_lines(each))
            self.item_lines(made).update(arguments.lines)
        return made

    def _has(self, name: str, one: Any, values: list[Any]) -> Any:
        """hasattr and getattr: methods of a model that are known exist."""
        key = values[1]
        if not isinstance(key, str):
            return UNKNOWN
        if isinstance(one, Imported) and one.path == "torch" and name == "getattr":
            return key
        if name == "getattr":
            found = self.attribute(one, key)
            missing = isinstance(one, Thing) and one.kind in ("namespace", "instance", "arguments")
            if found is UNKNOWN and missing and len(values) > 2 and key not in one.values:
                return values[2]
            return found
        if isinstance(one, Thing) and one.kind in METHODS:
            known = key in METHODS[one.kind] or row(one.kind, key) is not None or key == "config"
            return True if known else UNKNOWN
        if isinstance(one, Thing) and one.kind in ("namespace", "instance"):
            return key in one.values
        return UNKNOWN

    # Attributes and items.

    def attribute(self, base: Any, name: str) -> Any:
        """The value of an attribute."""
        if isinstance(base, Imported):
            path = f"{base.path}.{name}"
            if path in KNOWN_NAMES:
                return self.words if path == "sys.argv" else KNOWN_NAMES[path]
            if base.last in ENUMS:
                return name if base.last == "TaskType" else name.lower()
            return name if is_dtype(path) else Imported(path)
        if isinstance(base, Mapping):
            return base.get(name, UNKNOWN)
        if isinstance(base, ScriptClass):
            if name in base.fields:
                return base.fields[name]
            node = base.method(name)
            if node is not None:
                return Function(node, base.scope)
            return Imported(f"script.{next(iter(sorted(base.roots)), base.name)}.{name}")
        if isinstance(base, Thing):
            return self._thing_attribute(base, name)
        if base is UNKNOWN and name in self.given:  # an object of a file that is not at hand
            return self.given[name]
        return UNKNOWN

    def _thing_attribute(self, base: Thing, name: str) -> Any:
        if base.kind == "model":
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
        if base.kind == "part":
            return base if name not in ("shape", "dtype", "device", "ndim", "requires_grad") else UNKNOWN
        if base.kind == "trainer":
            if name in ("accelerator", "state", "optimizer", "lr_scheduler"):
                kind = "accelerator" if name == "accelerator" else "data"
                return Thing(kind=kind, name=name)
            return base.values.get(name, UNKNOWN)
        if base.kind == "accelerator":
            main = {"is_main_process": True, "is_local_main_process": True, "process_index": 0}
            known = {**main, "num_processes": self.num_gpus, "local_process_index": 0}
            known["sync_gradients"] = True
            return known.get(name, UNKNOWN)
        if base.kind == "output":
            return base
        if base.kind == "arguments" and name not in base.values:
            own = {"world_size": self.num_gpus, "do_train": True, "process_index": 0, "n_gpu": 1}
            own |= {"local_rank": 0, "local_process_index": 0, "device": UNKNOWN}
            default = argument_table(TRAINER_TABLE).get(name)
            return own.get(name, default.default if default is not None else UNKNOWN)
        if base.kind == "instance" and name not in base.values:
            made = base.values.get("(class)")
            node = made.method(name) if isinstance(made, ScriptClass) else None
            return Function(node, made.scope, base) if node is not None else UNKNOWN
        if base.kind in ("data", "loader", "tokenizer"):
            return Thing(kind="data", name=name) if name not in ("pad_token", "eos_token") else UNKNOWN
        return base.values.get(name, UNKNOWN)

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
                self.found.facts.setdefault("lengths", {})[line] = int(value)
        elif owner.kind == "tokenizer":
            if name in ("model_max_length", "max_length") and isinstance(value, int):
                self.found.lengths[line] = value
            self.seen(line, text, FREE, "texts and their tokens are on the host")
        elif owner.kind in ACCOUNTED:
            set_attribute(self, owner, name, value, line, text)

    def set_item(self, owner: Any, key: Any, value: Any, line: int, text: str) -> None:
        """Assign to an item of a dictionary, of the environment, of a tensor."""
        if isinstance(owner, dict) and isinstance(key, str | int):
            owner[key] = value
            self.item_lines(owner)[str(key)] = line
        elif isinstance(owner, Thing) and owner.kind == "part":
            self.seen(line, text, FREE, "values are written into a tensor that is there")
        elif isinstance(owner, Imported) and owner.path == "os.environ" and isinstance(key, str):
            self._variable(key, value, line, text)
        elif isinstance(owner, Thing) and owner.kind in ("namespace", "instance"):
            owner.values[str(key)] = value

    def _variable(self, key: str, value: Any, line: int, text: str) -> None:
        """A variable of the process."""
        self.environment = {**self.environment, key: str(value)}
        if key in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "CUBLAS_WORKSPACE_CONFIG"):
            self.found.facts.setdefault("environment", {})[key] = value
            self.seen(line, text, HONOURED)
        elif key in ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"):
            if isinstance(value, str) and "," in value:
                why = "the script chooses several GPUs itself; one of them is estimated"
                self.seen(line, text, LIMIT, why)
            else:
                self.seen(line, text, HONOURED)
        elif key.startswith(("ACCELERATE_", "FSDP_", "DEEPSPEED_")):
            self.seen(line, text, UNCLEAR, "not understood: it sets up the launch")
        else:
            self.seen(line, text, FREE, "a variable of libraries, without tensors")

    def decorated(self, node: ast.AST, function: Any, scope: Scope) -> Any:
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
            if isinstance(owner, Thing) and owner.kind == "app":
                owner.values.setdefault("commands", []).append(function)
        return function


def _shown(node: ast.Call) -> str:
    """A call as a sentence shows it: without long arguments."""
    text = ast.unparse(node)
    return text if len(text) <= SHOWN else f"{ast.unparse(node.func)[: SHOWN - 5]}(...)"
