"""Calls whose value the text shows: of Python, of the run's machine, of files and parsers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..translation.arguments import tables
from .attributes import Interpreter
from .library import ARGUMENT_CLASS, HANDLERS, call_library, make_arguments, make_trainer
from .methods import METHODS
from .operations import builtin, path_function
from .parsers import (
    PARSERS,
    declare,
    make_parser,
    parsed_instance,
    peft_config,
    quantization_config,
)
from .record import FREE, HONOURED, UNCLEAR
from .rows import row
from .unknown_calls import changes_elsewhere, look_through
from .values import (
    TRACKED,
    UNKNOWN,
    Arguments,
    Imported,
    ScriptClass,
    ScriptFunction,
    Thing,
    is_thing,
)

ENTRIES = ("fire.Fire", "typer.run", "defopt.run", "jsonargparse.CLI", "absl.app.run", "app.run")
# Attributes of libraries, and what they are on the run's machine.
SUPPORTED = "the card computes in bf16"
KNOWN_CALLS: Mapping[str, Any] = tables(__file__)["known_calls"]
ABILITIES = ("is_bf16_supported", "is_torch_bf16_gpu_available", "is_torch_bf16_available")
FILE_TESTS = ("exists", "isdir", "isfile", "is_dir", "is_file", "glob", "iterdir", "listdir")
AUTOCAST = ("torch.autocast", "torch.cuda.amp.autocast", "torch.amp.autocast")
HALF = ("bfloat16", "float16")
FILE_READERS = ("safe_load", "load", "full_load", "loads", "to_object", "to_container")


class HostCalls(Interpreter):
    """Follows a script, with the functions of libraries."""

    def on_disk(self, name: str, path: Any) -> Any:
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

    def library(self, called: Imported, arguments: Arguments, *, bare: bool) -> Any:
        """A function or class of a library."""
        path, name = called.path, called.last
        if called.package == "builtins":
            return self._builtin(name, arguments)
        if path in KNOWN_CALLS:
            return KNOWN_CALLS[path]
        if path == "torch.cuda.device_count":
            self.found.facts["counts GPUs"] = arguments.line
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
            return self.on_disk(name, arguments.get("path", 0))
        if path.startswith("os.path."):
            return path_function(name, arguments.positional)
        if name in PARSERS:
            self.found.facts.setdefault("parsers", set()).add(name)
            return make_parser(name, arguments)
        if path in ENTRIES and isinstance(arguments.first, ScriptFunction):
            return self.follow(arguments.first, Arguments(named=declare(self, arguments.first)))
        if path == "tyro.cli" and arguments.positional:
            return parsed_instance(self, arguments.positional[0], self.given, arguments.line)
        return self._more_library(called, arguments, bare=bare)

    def _more_library(self, called: Imported, arguments: Arguments, *, bare: bool) -> Any:
        path, name = called.path, called.last
        if name in FILE_READERS and called.package in ("yaml", "json", "toml", "omegaconf"):
            one = arguments.first
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
            handed = Arguments(positional=arguments.positional[:1], named=arguments.named)
            look_through(self, handed)
            return arguments.first
        if path in ("accelerate.PartialState", "accelerate.state.PartialState"):
            return Thing(kind="accelerator", name=name, line=arguments.line)
        known = name in HANDLERS or row("function", name) is not None
        changes = bare and not known and changes_elsewhere(called)
        if changes and not arguments.things(*TRACKED):
            why = f"not understood: what {called.package} changes is not shown"
            self.seen(arguments.line, arguments.text, UNCLEAR, why)
            return UNKNOWN
        return call_library(self, called, arguments)

    def _copied(self, arguments: Arguments) -> Any:
        one = arguments.first
        if is_thing(one, "model"):
            values = {**one.values, "copied": arguments.line}
            return self.make(Thing(kind="model", name=one.name, line=arguments.line, values=values))
        return one

    def _builtin(self, name: str, arguments: Arguments) -> Any:
        """A function of Python itself."""
        values = arguments.positional
        one = arguments.first
        if name == "super":
            return Thing(kind="super")
        if name == "open":
            return Thing(kind="file", values={"path": one})
        if name in ("getattr", "hasattr") and len(values) > 1:
            return self._has(name, one, values)
        if name == "setattr" and len(values) > 2:
            self.set_attribute(one, str(values[1]), values[2], arguments.line, arguments.text)
            return None
        if name == "map" and len(values) > 1 and isinstance(one, ScriptFunction):
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
            own = is_thing(one, "namespace", "instance", "arguments")
            missing = found is UNKNOWN and own and key not in one.values
            return values[2] if missing and len(values) > 2 else found
        if is_thing(one, "model", "part", "trainer", "accelerator"):
            known = key in METHODS[one.kind] or row(one.kind, key) is not None or key == "config"
            return True if known else UNKNOWN
        return key in one.values if is_thing(one, "namespace", "instance") else UNKNOWN

    def instance(self, made: ScriptClass, arguments: Arguments) -> Any:
        """An object of a class of the script."""
        made.made = True
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
        if (method := thing.method("__init__")) is not None:
            self.follow(method, arguments)
        else:
            thing.values |= dict(zip(made.fields, arguments.positional, strict=False))
            thing.values |= arguments.named
            if made.fields and not made.roots:
                self.found.options |= made.fields
        return thing
