"""The run that a command's options describe."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from ..ledger.secrets import printed_words
from ..runfile.text.errors import InputError, print_to_stderr
from ..tools.read import Asked, Door, read
from .releases import at_releases, known_releases, named_texts
from .training_options import chosen_settings, option_words, settings_words


def run_data(args: argparse.Namespace) -> dict[str, Any]:
    """The run that the options describe, as plain data; prints what was assumed to stderr."""
    source = run_source(args, needs_model=not getattr(args, "function", None))
    if os.environ.get("RANK", "0") == "0":  # of a launcher's ranks, only the first prints it
        print_to_stderr(*(f"assumed: {text}" for text in source.notes))
        print_to_stderr(*(f"not modelled: {text}" for text in source.limits))
    return source.run


def run_source(args: argparse.Namespace, *, needs_model: bool = True) -> Asked:
    """The run that --config or --preset, --model and --set describe.

    Without `needs_model` (a function or a record brings the model), --set alone is enough.
    """
    name_source(args)
    if args.config is None and args.preset is None and needs_model:
        args.preset, args.model = args.model, None  # alone, it is the model of the run

    def options(data: Mapping[str, Any]) -> tuple[Sequence[str], Sequence[str]]:
        chosen = chosen_settings(args, data)
        return (*chosen.settings, *args.settings), chosen.assumed

    if not needs_model and args.config is None and args.preset is None:
        return Asked(run={}).with_options(options)
    if (args.config is None) == (args.preset is None):
        raise InputError("give one of --config FILE and --preset NAME")
    known = known_releases(named_texts(args))
    door = Door(model=args.model, options=options, releases=known)
    if args.preset is not None:
        return read({"model": {"name": args.preset}}, door)
    asked = read(args.config, door)
    if known:
        asked = replace(asked, run=at_releases(args, asked.run))
    if needs_model and "model" not in asked.run and asked.is_deepspeed:
        why = "is DeepSpeed's configuration, which names no model; add --model NAME"
        raise InputError(f"{args.config} {why}")
    return asked


def name_source(args: argparse.Namespace) -> None:
    """Take SOURCE, where the verb has it, as --config."""
    if (source := getattr(args, "source", None)) is None:
        return
    if args.config not in (None, source) or args.preset is not None:
        raise InputError(
            f"{source} and --{'preset' if args.preset else 'config'} name two runs; give one"
        )
    args.config = source


def run_words(args: argparse.Namespace) -> list[str]:
    """The options that describe the same run on another command line."""
    named: list[str] = []
    for name in ("config", "preset", "model"):
        if value := getattr(args, name):
            named += [f"--{name}", value]
    return printed_words([*named, *option_words(args), *settings_words(args.settings)])
