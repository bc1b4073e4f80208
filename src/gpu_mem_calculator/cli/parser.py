"""argparse with errors in one sentence, and the options that verbs share."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

from ..core.errors import InputError, nearest, print_to_stderr
from ..core.runfile import with_settings


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Help 80 columns wide, with the examples as written."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=80)


class Parser(argparse.ArgumentParser):
    """A parser whose errors are `InputError`s and whose help shows examples as written."""

    def __init__(self, **rest: Any) -> None:
        super().__init__(formatter_class=HelpFormatter, allow_abbrev=False, **rest)

    def error(self, message: str) -> NoReturn:
        """Raise one sentence, where argparse prints the usage and exits."""
        verb = self.prog.rpartition(" ")[2]
        missing = re.match(r"the following arguments are required: (.+)", message)
        if missing:
            raise InputError(f"{verb} needs {missing[1]}; see {self.prog} --help")
        message = re.sub(r"^argument (?:-\w/)?(\S+): ", r"\1 ", message)
        raise InputError(message.replace("expected one argument", "needs a value"))

    def option(self, names: str, metavar: str, text: str, kind: Any = None, **rest: Any) -> None:
        """Add an option with a value: its names, and `text` as its help; `kind` is its type."""
        self.add_argument(*names.split(), metavar=metavar, help=text, type=kind, **rest)

    def repeated(self, name: str, metavar: str, text: str, dest: str) -> None:
        """Add an option that may be repeated."""
        text += "; may be repeated"
        self.option(name, metavar, text, action="append", default=[], dest=dest)

    def flag(self, name: str, text: str, action: str = "store_true", **rest: Any) -> None:
        """Add an option without a value, with `text` as its help."""
        self.add_argument(name, action=action, help=text, **rest)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Raise one sentence for a value that is none of the choices."""
        if action.choices is not None and value not in action.choices:
            known = list(map(str, action.choices))
            name = action.option_strings[-1] if action.option_strings else action.dest
            hint = nearest(str(value), known)
            raise InputError([f"{name} {value!r} is not one of {', '.join(known)}{hint}"])

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        """argparse's result; an unknown option is refused with the nearest known one."""
        parsed, unknown = self.parse_known_args(args, namespace)
        if unknown:
            verb = self.prog.rpartition(" ")[2]
            word = next((u for u in unknown if u.startswith("-")), unknown[0])
            name = word.partition("=")[0]
            if not word.startswith("-"):
                self.error(f"{word!r} is one word too many for {verb}; see {self.prog} --help")
            known = [o for o in self._option_string_actions if o.startswith("--")]
            hint = nearest(name, known) or f"; see {self.prog} --help"
            self.error(f"{name} is not an option of {verb}{hint}")
        return parsed


def whole(text: str) -> int:
    """A whole number, 1 or more."""
    if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number, 1 or more")
    return int(text)


def natural(text: str) -> int:
    """A whole number, 0 or more."""
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number, 0 or more")
    return int(text)


def positive(text: str) -> float:
    """A number above 0."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < 1e12:
        raise argparse.ArgumentTypeError(f"{text!r} must be a number above 0")
    return number


def add_run(parser: Parser) -> None:
    """Add the options that name a run: --config, --preset, --model and --set."""
    parser.option("-c --config", "FILE", "a run file (JSON, YAML or TOML), or DeepSpeed's JSON")
    parser.option("-p --preset", "NAME", "a model from gpu-mem-calc presets, the rest by default")
    add_model(parser)
    add_settings(parser)


def add_model(parser: Parser) -> None:
    """Add --model, for a DeepSpeed JSON, which names no model."""
    text = "the model for DeepSpeed's JSON, which names none: a preset, a name on the hub, a path"
    parser.option("--model", "NAME", text)


def add_settings(parser: Parser) -> None:
    """Add --set, which may be repeated."""
    parser.repeated("--set", "SECTION.KEY=VALUE", "change one key of the run", "settings")


def add_allocator(parser: Parser) -> None:
    """Add --alloc-conf and --snapshot, for verbs that run a job."""
    parser.option("--alloc-conf", "TEXT", "PYTORCH_ALLOC_CONF, such as expandable_segments:True")
    parser.option("--snapshot", "FILE", "write torch's memory snapshot, for its memory viewer")


def add_output(parser: Parser, *formats: str) -> None:
    """Add --format, the first of `formats` by default, and --output."""
    text = f"{', '.join(formats)} (default: {formats[0]})"
    parser.add_argument("-f", "--format", choices=formats, default=formats[0], help=text)
    parser.option("-o --output", "FILE", "write to a file")


class RunSource(NamedTuple):
    """A run as plain data, as the options describe it.

    - `assumed`: what was assumed in reading DeepSpeed's JSON, a sentence each
    - `no_memory`: keys of DeepSpeed's JSON that take no memory
    - `deepspeed`: the file was DeepSpeed's JSON
    """

    data: dict[str, Any]
    assumed: tuple[str, ...] = ()
    no_memory: tuple[str, ...] = ()
    deepspeed: bool = False


def run_data(args: argparse.Namespace) -> dict[str, Any]:
    """The run that the options describe, as plain data; prints what was assumed to stderr."""
    source = run_source(args, needs_model=not getattr(args, "function", None))
    if os.environ.get("RANK", "0") == "0":  # of a launcher's ranks, only the first prints it
        print_to_stderr(*(f"assumed: {text}" for text in source.assumed))
    return source.data


def run_source(args: argparse.Namespace, *, needs_model: bool = True) -> RunSource:
    """The run that --config or --preset, --model and --set describe.

    Without `needs_model` (a function or a record brings the model), --set alone is enough.
    """
    from ..core.text_data import load_text
    from ..formats.deepspeed_detect import is_deepspeed

    if not needs_model and args.config is None and args.preset is None:
        return RunSource(with_settings({}, args.settings))
    if (args.config is None) == (args.preset is None):
        raise InputError("give one of --config FILE and --preset NAME")
    data = None if args.preset else load_text(args.config)
    if is_deepspeed(data):
        return _deepspeed(args, data, needs_model=needs_model)
    if args.model is not None:
        fix = "leave it out, or use --set model.name=NAME"
        raise InputError(f"--model {args.model} is for DeepSpeed's JSON, which names none; {fix}")
    if args.preset is not None:
        return RunSource(with_settings({"model": {"name": args.preset}}, args.settings))
    if not isinstance(data, dict):
        kind = {"list": "a list", "NoneType": "empty"}.get(type(data).__name__, "a single value")
        wanted = "a run file is an object with a 'model' section"
        raise InputError(f"{args.config}: {wanted}, this one is {kind}")
    return RunSource(with_settings(data, args.settings))


def _deepspeed(args: argparse.Namespace, data: Any, *, needs_model: bool) -> RunSource:
    """The run of DeepSpeed's JSON and --model."""
    from ..formats.deepspeed_reader import run_file

    source = RunSource(*run_file(data, model=args.model, settings=args.settings), deepspeed=True)
    if needs_model and "model" not in source.data:
        why = "is DeepSpeed's configuration, which names no model; add --model NAME"
        raise InputError(f"{args.config} {why}")
    return source


def run_words(args: argparse.Namespace) -> list[str]:
    """The options that describe the same run on another command line."""
    named: list[str] = []
    for name in ("config", "preset", "model"):
        if value := getattr(args, name):
            named += [f"--{name}", value]
    return [*named, *(word for one in args.settings for word in ("--set", one))]
