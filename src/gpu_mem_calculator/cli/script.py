"""`trace -- COMMAND`: the user's own training script."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from ..runfile.text.errors import InputError
from .parser import option_name
from .values import tokens

if TYPE_CHECKING:
    from ..report.tracing import TraceReport

# Sizes of data, a tokenizer or weights that are not on this machine.
SHAPES = ("seq_len", "prompt_len", "rows", "vocab_size", "dtype")
SECONDS = 1800  # after which a script is ended
DTYPES = ("bfloat16", "float16", "float32")
NOT_WITH_SCRIPT = ("config", "preset", "model", "function", "diff", "rank", "trust_remote_code")


def check_no_script_options(args: argparse.Namespace) -> None:
    """Raise for options of a script where there is none."""
    if args.shapes:
        raise InputError("--shapes is for a script; add -- python FILE, or leave it out")
    if args.timeout is not None:
        raise InputError("--timeout is for a script; add -- python FILE, or leave it out")
    if args.gpu:
        fix = f"use --set hardware.gpu={args.gpu}"
        raise InputError(f"--gpu is for a script; {fix}")


def read_shapes(texts: list[str]) -> dict[str, int | str]:
    """The values of --shapes by name."""
    values: dict[str, int | str] = {}
    problems = []
    for text in texts:
        name, _, value = text.partition("=")
        if name not in SHAPES:
            problems.append(f"--shapes {text}: known names are {', '.join(SHAPES)}")
            continue
        if name == "dtype":
            values[name] = value
            if value not in DTYPES:
                problems.append(f"--shapes dtype={value} must be one of {', '.join(DTYPES)}")
            continue
        try:
            values[name] = tokens(value)
        except argparse.ArgumentTypeError as error:
            problems.append(f"--shapes {name}={error}")
    if problems:
        raise InputError(problems)
    return values


def script_report(args: argparse.Namespace) -> TraceReport:
    """The report of a script's trace."""
    from ..estimates.calculator import full_estimate
    from ..lab.script.launch import read_launch
    from ..lab.script.run import STEPS, script_run_file, trace_script
    from ..pytorch.replay.advice import advise
    from ..report.tracing import TraceReport

    shapes, data = read_shapes(args.shapes), _run_file(args)
    launch = read_launch(args.script)
    steps = args.steps or STEPS
    seconds = SECONDS if args.timeout is None else args.timeout
    traced, recording = trace_script(launch, data, steps=steps, shapes=shapes, timeout=seconds)
    return TraceReport(
        trace=traced,
        estimate=full_estimate(script_run_file(launch, data, recording.engine), replay=False),
        advice=advise(traced.stream, traced.resolved.allocator, traced.needs_bytes),
        title=launch.target,
        words=tuple(recording.words),
        num_parameters=recording.num_parameters,
        num_trained=recording.num_trained,
    )


def _run_file(args: argparse.Namespace) -> dict[str, Any]:
    """The hardware and the allocator's settings, which a script does not say."""
    from ..runfile.read import with_settings

    for name in NOT_WITH_SCRIPT:
        if getattr(args, name, None):
            why = "describes a run, and a script brings its own; leave it out"
            raise InputError(f"{option_name(name)} {why}")
    other = [text for text in args.settings if not text.startswith("hardware.")]
    if other:
        why = "a script brings its own run; only hardware.* can be set"
        raise InputError(f"--set {other[0]}: {why}")
    gpu = [f"hardware.gpu={args.gpu}"] if args.gpu else []
    alloc = [f"training.pytorch_alloc_conf={args.alloc_conf}"] if args.alloc_conf else []
    data: dict[str, Any] = with_settings({}, (*gpu, *alloc, *args.settings))
    return data
