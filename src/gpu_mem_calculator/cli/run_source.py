"""The run that a command's options describe, as plain data."""

from __future__ import annotations

import argparse
import os
from typing import Any, NamedTuple

from ..ledger.secrets import printed_words
from ..run.limits import Limit
from ..runfile.read import with_settings
from ..runfile.text.errors import InputError, print_to_stderr
from .training_options import chosen_settings, option_words, settings_words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..tools.reading.reading import Reading


class RunSource(NamedTuple):
    """A run as plain data, as the options describe it.

    - `assumed`: what was assumed in reading another tool's file, a sentence each
    - `no_memory`: keys of that file that take no memory
    - `limits`: what of that file is not modelled
    - `deepspeed`: the file was DeepSpeed's JSON
    """

    data: dict[str, Any]
    assumed: tuple[str, ...] = ()
    no_memory: tuple[str, ...] = ()
    limits: tuple[Limit, ...] = ()
    deepspeed: bool = False


def run_data(args: argparse.Namespace) -> dict[str, Any]:
    """The run that the options describe, as plain data; prints what was assumed to stderr."""
    source = run_source(args, needs_model=not getattr(args, "function", None))
    if os.environ.get("RANK", "0") == "0":  # of a launcher's ranks, only the first prints it
        print_to_stderr(*(f"assumed: {text}" for text in source.assumed))
        print_to_stderr(*(f"not modelled: {text}" for text in source.limits))
    return source.data


def run_source(args: argparse.Namespace, *, needs_model: bool = True) -> RunSource:
    """The run that --config or --preset, --model and --set describe.

    Without `needs_model` (a function or a record brings the model), --set alone is enough.
    """
    from ..runfile.file_kinds import as_run_file, is_model_config, is_run_file
    from ..runfile.text.text_data import load_text
    from ..tools.deepspeed.detect import is_deepspeed

    name_source(args)
    if args.config is None and args.preset is None and needs_model:
        args.preset, args.model = args.model, None  # alone, it is the model of the run
    if not needs_model and args.config is None and args.preset is None:
        return _with_options(args, {})
    if (args.config is None) == (args.preset is None):
        raise InputError("give one of --config FILE and --preset NAME")
    if args.config is not None and is_command(args.config):
        return _command(args)
    data = None if args.preset else load_text(args.config)
    if not is_run_file(data) and _is_foreign(data):
        return _foreign(args, data)
    bare = is_model_config(data)
    data = as_run_file(data, args.config)
    if is_deepspeed(data):
        return _deepspeed(args, data, needs_model=needs_model)
    if args.model is not None:
        fix = "leave it out, or use --set model.name=NAME"
        raise InputError(f"--model {args.model} is for DeepSpeed's JSON, which names none; {fix}")
    if args.preset is not None:
        return _with_options(args, {"model": {"name": args.preset}})
    if not isinstance(data, dict):
        kind = {"list": "a list", "NoneType": "empty"}.get(type(data).__name__, "a single value")
        wanted = "a run file is an object with a 'model' section"
        raise InputError(f"{args.config}: {wanted}, this one is {kind}")
    source = _with_options(args, data)
    rest = f"{args.config} is a model's config.json; the rest of the run has its defaults"
    return source._replace(assumed=(rest, *source.assumed)) if bare else source


def _is_foreign(data: Any) -> bool:
    """Whether data is another tool's file; the tools are imported for what is no run file alone."""
    from ..tools.reading.tools import file_format

    return file_format(data) is not None


def name_source(args: argparse.Namespace) -> None:
    """Take SOURCE, where the verb has it, as --config."""
    if (source := getattr(args, "source", None)) is None:
        return
    if args.config not in (None, source) or args.preset is not None:
        raise InputError(
            f"{source} and --{'preset' if args.preset else 'config'} name two runs; give one"
        )
    args.config = source


def _with_options(args: argparse.Namespace, data: dict[str, Any]) -> RunSource:
    """The run of a file's data with the everyday options, then --set."""
    chosen = chosen_settings(args, data)
    return RunSource(with_settings(data, (*chosen.settings, *args.settings)), chosen.assumed)


def _foreign(args: argparse.Namespace, data: Any) -> RunSource:
    """The run of another tool's file, with the options."""
    from pathlib import Path

    from ..tools.reading.named_files import NamedFiles
    from ..tools.reading.tools import read_data

    folder = Path(args.config).parent if args.config != "-" else Path()
    reading = read_data(data, NamedFiles(folder))
    assert reading is not None
    return _read(args, reading)


def is_command(text: str) -> bool:
    """Whether a text is a command in quotes, or names a script or a Modelfile."""
    from ..tools.reading import MODELFILE, SCRIPTS

    name = os.path.basename(text)
    script = text.lower().endswith(SCRIPTS) or name.startswith(MODELFILE)
    return script or (" " in text.strip() and not os.path.exists(text))


def _command(args: argparse.Namespace) -> RunSource:
    """The run of a command or a script, with the options."""
    import shlex

    from ..tools.conversion.source import read_source
    from ..tools.reading.named_files import NamedFiles

    try:
        words = [args.config] if os.path.exists(args.config) else shlex.split(args.config)
    except ValueError as error:
        raise InputError(f"{args.config!r} is not a command: {error}") from None
    readings = read_source(words, NamedFiles())
    if len(readings) > 1:
        several = f"{args.config} starts {len(readings)} commands"
        raise InputError(f"{several}, and a run is one; use gpu-mem-calc check {args.config}")
    return _read(args, readings[0])


def _read(args: argparse.Namespace, reading: Reading) -> RunSource:
    """The run of a reading, with the options."""
    if reading.problems:
        raise InputError(reading.problems)
    run = reading.run_file
    if args.model is not None:
        run["model"] = {"name": args.model}
    source = _with_options(args, run)
    return source._replace(
        assumed=(*reading.assumed, *source.assumed),
        limits=tuple(reading.limits),
        no_memory=tuple(key for key, effect in reading.keys.items() if effect == "free"),
    )


def _deepspeed(args: argparse.Namespace, data: Any, *, needs_model: bool) -> RunSource:
    """The run of DeepSpeed's JSON and --model."""
    from ..tools.deepspeed.read import run_file

    chosen = chosen_settings(args, {"engine": {"type": "deepspeed"}})
    settings = [*chosen.settings, *args.settings]
    source = RunSource(*run_file(data, model=args.model, settings=settings), deepspeed=True)
    source = source._replace(assumed=(*source.assumed, *chosen.assumed))
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
    return printed_words([*named, *option_words(args), *settings_words(args.settings)])
