"""Trace a run: the real model's code runs on fake tensors.

Its allocations are replayed in a simulation of PyTorch's caching allocator.
Needs no GPU, and loads no weights.

`trace -- COMMAND`: the user's own training script.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from ..runfile.text.errors import InputError, print_to_stderr
from .function import function_values, needs_torch
from .output import show_answer
from .parser import option_name
from .run_source import run_data
from .values import tokens

if TYPE_CHECKING:
    from ..estimates.calculator import Estimate
    from ..lab.jobs.function import UserFunction
    from ..lab.trace.diff import LedgerDiff
    from ..lab.trace.foreign_model import ForeignModel
    from ..lab.trace.run import RunTrace
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


# What the help of the options names.
NAMED = {"SHAPES": ", ".join(SHAPES), "SECONDS": SECONDS}


def run(args: argparse.Namespace) -> int:
    """Trace the run of the options, and report it."""
    needs_torch("trace")
    if args.script:
        return write_report(args, script_report(args))
    job = trace_input(args)
    return write_report(args, report_of(args, job, run_trace(args, job)))


def write_report(args: argparse.Namespace, report: TraceReport) -> int:
    """Write the report, and the snapshot where it is wanted."""
    result = report.trace
    if args.snapshot:
        from ..lab.trace.snapshot import write_snapshot

        write_snapshot(args.snapshot, result.stream, result.makers, result.resolved.allocator)
    from ..report.tracing import tracing_data, tracing_report

    show_answer(args, lambda: tracing_data(report), tracing_report(report))
    if args.snapshot and args.format == "table":
        viewer = "torch's memory viewer; drop it on pytorch.org/memory_viz"
        print_to_stderr(f"{args.snapshot} is for {viewer}")
    return 0


class TraceInput(NamedTuple):
    """What is traced.

    - `data`, `estimate`: the run file, and its estimate
    - `maker`: builds the model and batch, where the run file does not describe them
    - `notes`: sentences for the report
    """

    data: dict[str, Any]
    estimate: Estimate
    maker: UserFunction | ForeignModel | None = None
    notes: tuple[str, ...] = ()


def trace_input(args: argparse.Namespace) -> TraceInput:
    """The run of the options, with the function or config.json that makes its model."""
    check_no_script_options(args)
    values = function_values(args)
    data = run_data(args)
    if args.alloc_conf is not None:
        _section(data, "training")["pytorch_alloc_conf"] = args.alloc_conf
    if args.function:
        return _function_input(args, data, values)
    from ..lab.trace.foreign_model import find_foreign_model
    from ..lab.trace.run import device_of

    with _errors_as_sentence():
        maker = find_foreign_model(data.get("model"), trust=args.trust_remote_code)
    if maker is None:
        return TraceInput(data, estimate_of(data, exact=args.diff))
    _no_diff(args, maker.title)
    data = maker.run_file(data)
    estimate = estimate_of(data, exact=False)
    maker.run = estimate.resolved.run
    engine = estimate.resolved.engine.name
    maker.device = "meta" if engine == "fsdp" else device_of(estimate.resolved)
    return TraceInput(data, estimate, maker)


def _function_input(
    args: argparse.Namespace, data: dict[str, Any], values: dict[str, Any]
) -> TraceInput:
    from ..lab.jobs.function import (
        UserFunction,
        run_without_model,
        unused_sentence,
        values_sentence,
    )
    from ..lab.trace.run import device_of

    _no_diff(args, "the model of --function")
    data, unused = run_without_model(data)
    notes = [values_sentence(values)] if values else []
    notes += [unused_sentence(unused)] if unused else []
    estimate = estimate_of(data, exact=False)
    precision, device = estimate.resolved.run.precision, device_of(estimate.resolved)
    maker = UserFunction(args.function, precision, values, device=device)
    return TraceInput(data, estimate, maker, tuple(notes))


def _no_diff(args: argparse.Namespace, what: str) -> None:
    if args.diff:
        raise InputError(
            f"--diff compares with the estimate, which does not know {what}; leave it out"
        )


def _section(data: dict[str, Any], name: str) -> dict[str, Any]:
    value = data.get(name)
    data[name] = dict(value) if isinstance(value, Mapping) else {}
    section: dict[str, Any] = data[name]
    return section


def estimate_of(data: dict[str, Any], *, exact: bool) -> Estimate:
    """The estimate of the traced run; `exact` replays the allocator, for a comparison."""
    from ..estimates.calculator import full_estimate

    return full_estimate(data, replay=exact)


def run_trace(args: argparse.Namespace, job: TraceInput) -> RunTrace:
    """Trace the run; shows the phases on a terminal, and raises a sentence for a model's error."""
    from ..lab.jobs.function import UserFunction, user_errors
    from ..lab.trace.run import STEPS, trace

    maker = job.maker
    with (
        _phase_line() as progress,
        user_errors(maker.spec) if isinstance(maker, UserFunction) else _errors_as_sentence(),
    ):
        steps = args.steps or STEPS
        if job.data.get("program") is not None:
            return _program_trace(job, steps, args.rank)
        return trace(job.data, rank=args.rank, steps=steps, build=maker, progress=progress)


def _program_trace(job: TraceInput, steps: int, rank: int) -> RunTrace:
    """Trace a program; a model that is not known to the estimate has no tool that runs it."""
    from ..lab.script.program import trace_program

    if job.maker is not None:
        why = f"the program makes its model itself, and {job.maker.title} is another one"
        raise InputError(f"{why}; leave one of them out")
    return trace_program(job.data, steps=steps, rank=rank)


@contextmanager
def _errors_as_sentence() -> Iterator[None]:
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # a model's code and torch may raise anything
        raise InputError(failure(error)) from error


def failure(error: Exception) -> str:
    """An error inside the model's code as one sentence, with its file and line."""
    import traceback

    from ..report.tracing import place

    last = traceback.extract_tb(error.__traceback__)[-1]
    reason = (str(error).strip().splitlines() or ["no reason given"])[0]
    where = place(f"{last.filename}:{last.lineno}")
    return f"the traced run failed in {where}, {type(error).__name__}: {reason}"


@contextmanager
def _phase_line() -> Iterator[Callable[[str], None] | None]:
    """Yields a function that shows the phase that ended on one line; None without a terminal.

    The line is erased at the end.
    """
    if not sys.stderr.isatty():
        yield None
        return
    from ..lab.trace.ledger import title

    def show_phase(name: str) -> None:
        print(f"\r\033[Ktraced {title(name)}", end="", file=sys.stderr, flush=True)

    print("tracing ...", end="", file=sys.stderr, flush=True)
    try:
        yield show_phase
    finally:
        print("\r\033[K", end="", file=sys.stderr, flush=True)


def report_of(args: argparse.Namespace, job: TraceInput, traced: RunTrace) -> TraceReport:
    """The trace with its advice, notes and comparison."""
    from ..pytorch.replay.advice import advise
    from ..report.tracing import TraceReport

    maker, result, run = job.maker, job.estimate.result, job.estimate.resolved.run
    return TraceReport(
        trace=traced,
        estimate=job.estimate,
        advice=advise(traced.stream, traced.resolved.allocator, traced.needs_bytes),
        notes=job.notes,
        title=maker.title if maker else "",
        batch=f"micro-batch {run.batch} × {run.seq:,}" if maker and not args.function else "",
        num_parameters=maker.num_parameters if maker else result.num_parameters,
        num_trained=maker.num_trained if maker else result.trainable_parameters,
        difference=_difference(job.estimate, traced) if args.diff else None,
    )


def _difference(estimate: Estimate, traced: RunTrace) -> LedgerDiff:
    from ..lab.backtest.phases import phase_peaks, replayed_peaks
    from ..lab.trace.diff import difference
    from ..report.tracing import peak_phase_instant

    micro_batches, names = int(estimate.resolved.run.micro_batches), tuple(traced.phases)
    peaks = phase_peaks(estimate.ledger, names, micro_batches)
    if estimate.replayed is not None:
        peaks |= replayed_peaks(estimate.replayed.phases, names, micro_batches)
    return difference(estimate.ledger, traced.ledger, peak_phase_instant(traced).name, peaks)
