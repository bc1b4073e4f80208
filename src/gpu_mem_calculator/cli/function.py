"""--function, --with and --record: the user's own model and batch.

Verbs that run a job call the function; for an estimate its module is recorded once, and its record
is read.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from ..ledger.extras import install
from ..runfile.text.errors import InputError
from ..runfile.text.files import write_file
from ..runfile.text.text_data import load_record
from ..tools.read import Asked
from .run_source import run_source, run_words

SEQUENCES = "(training.seq_len)"  # an assumption that does not apply: the batch has its length
NEEDS_TORCH = "{} runs the model with torch, and {} is not installed; " + install("torch")


def function_words(args: argparse.Namespace) -> list[str]:
    """The words that name the same function on another command line."""
    if not args.function:
        return []
    return ["--function", args.function, *(word for one in args.values for word in ("--with", one))]


def function_values(args: argparse.Namespace) -> dict[str, Any]:
    """The values of --with by name."""
    if args.values and not args.function:
        raise InputError("--with is for the arguments of --function; add that, or leave it out")
    return named_values(args.values)


def named_values(texts: Sequence[str]) -> dict[str, Any]:
    """The values of NAME=VALUE texts: JSON's numbers, true, false and null, else text."""
    values, problems = {}, []
    for text in texts:
        name, equals, value = text.partition("=")
        if not (equals and name.isidentifier()):
            problems.append(f"--with {text!r} must be NAME=VALUE, such as n_layer=24")
            continue
        values[name] = scalar(value)
    if problems:
        raise InputError(problems)
    return values


def scalar(text: str) -> Any:
    """A JSON scalar, or the text itself."""
    try:
        # NaN and the infinities, which JSON does not have, stay text
        value = json.loads(text, parse_constant=str)
    except (ValueError, RecursionError):
        return text
    return text if isinstance(value, list | dict) else value


def recorded_words(args: argparse.Namespace) -> list[str]:
    """The options that describe the same run on another command line."""
    model = ["--record", args.record] if args.record else function_words(args)
    return [*run_words(args), *model]


def recorded_source(args: argparse.Namespace) -> Asked:
    """The run of the options; with --function or --record, its model is a module's record."""
    values = function_values(args)
    if not (args.function or args.record):
        return run_source(args)
    source = run_source(args, needs_model=False)
    if source.run.get("model") is not None:
        option = "--function" if args.function else "--record"
        raise InputError(
            f"{option} brings the model, and the run names one, too; leave one of them out"
        )
    if args.function:
        module = _record(args, source.run, values)
    else:
        module = load_record(args.record, "--record")
    notes = tuple(text for text in source.notes if SEQUENCES not in text)
    return replace(source, run={**source.run, "model": {"recorded": module}}, notes=notes)


def _record(
    args: argparse.Namespace, data: dict[str, Any], values: dict[str, Any]
) -> dict[str, Any]:
    """Record the function's module in one run, without checkpoints: the engine adds those."""
    needs_torch("calculate --function")
    from msgspec import to_builtins

    from ..lab.jobs.function import UserFunction, run_without_model, user_errors
    from ..lab.trace.record import record
    from ..runfile.resolve.resolve import resolve
    from ..tools.read import read

    run, _ = run_without_model(data)
    resolved = resolve(read(run).file)
    maker = UserFunction(args.function, resolved.run.precision, values)
    with user_errors(args.function):
        module: dict[str, Any] = to_builtins(record(maker, resolved, args.function))
    if args.record:
        write_file(args.record, json.dumps(module).encode("utf-8"), "--record")
    return module


def needs_torch(what: str) -> None:
    """Raise a sentence where torch or transformers is not installed."""
    from importlib import import_module

    for name in ("torch", "transformers"):
        try:
            import_module(name)
        except ModuleNotFoundError as error:
            raise InputError(NEEDS_TORCH.format(what, error.name or name)) from None
