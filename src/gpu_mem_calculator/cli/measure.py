"""Measure a run on one real CUDA GPU, which runs one rank of the whole job.

Under torchrun or the deepspeed launcher, each rank of the real job is measured.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from ..lab.measure.card import require_torch
from ..lab.measure.cases import CaseResult, measure_cases
from ..lab.measure.cases_file import STEPS, TIMEOUT, MeasureCase, fresh_id, read_cases
from ..lab.measure.program import program
from ..lab.measure.ranks import RankPlace, check_ranks, measure_rank
from ..lab.measure.ray_cluster import run_over_ray
from ..lab.measure.runs_file import RunsFile
from ..lab.measure.torchrun import end_with_torchrun, leave_problems
from ..ledger.units import GIB
from ..report.progress_bar import ProgressBar
from ..report.terminal import takes_escapes
from ..runfile.read import with_settings
from ..runfile.text.errors import InputError, print_to_stderr, printable
from .function import function_values, function_words
from .output import show_answer, write
from .parser import option_name
from .run_source import run_data, run_words

NAMED = {"STEPS": STEPS, "TIMEOUT": TIMEOUT}  # what the help of the options names
# Options, by argparse's names, that --ray passes to every rank besides those of the run.
RANK_OPTIONS = ("steps", "alloc_conf", "append", "id", "snapshot", "format", "output")
OnPhase = Callable[[MeasureCase, str], None]


def run(args: argparse.Namespace) -> int:
    """Measure the run or the cases of the options, and report."""
    from ..lab.measure.ranks import launched_rank

    place = launched_rank()
    if place is not None:
        return run_ranks(args, place)
    check_options(args)
    if args.ray is not None:
        return run_on_ray(args)
    file = RunsFile(args.append) if args.append else None
    if file is not None and file.repaired:
        print_to_stderr(file.repaired)
    cases = file_cases(args) if args.cases else [one_case(args, file)]
    todo = cases_to_measure(args, cases, file)
    if not todo:
        return 0
    tell_unused(todo)
    from ..lab.measure.card import find_card, import_once

    card = find_card()
    if args.cap is not None and args.cap > card.memory_bytes:
        has = f"the {card.name} has, {card.memory_bytes / GIB:.1f}; give less"
        raise InputError(f"--cap {args.cap / GIB:.1f} GiB is more than {has}")
    import_once()
    return run_many(args, todo, file) if args.cases else run_one(args, todo, file)


def one_case(args: argparse.Namespace, file: RunsFile | None) -> MeasureCase:
    """The case of --config, --preset or --function, checked before anything starts."""
    from ..lab.measure.program import program
    from ..lab.measure.worker import check_rank

    values, data = function_values(args), run_data(args)
    check_rank(args.rank or 0, program(data, args.function, values).num_ranks)
    name = run_name(args)
    if args.id is None and args.rank:
        name += f".rank{args.rank}"
    name = fresh_id(name, file.ids() if file else ())
    settings = {"snapshot": args.snapshot, **conditions(args)}
    return MeasureCase(id=name, config=data, function=args.function, values=values, **settings)


def file_cases(args: argparse.Namespace) -> list[MeasureCase]:
    """The cases of --cases, overridden by --set and the other options."""
    cases = read_cases(args.cases)
    bounded = next((case.id for case in cases if case.bounds_bytes), None)
    if bounded is not None and not args.find_minimum:
        fix = "add --find-minimum, or leave it out"
        raise InputError(f"case {bounded!r} has bounds_bytes, which --find-minimum takes; {fix}")
    return [
        replace(case, config=with_settings(dict(case.config), args.settings), **conditions(args))
        for case in cases
    ]


def tell_unused(cases: list[MeasureCase]) -> None:
    """Print once which keys of the run files are not used, because a function replaces them."""
    from ..lab.jobs.function import run_without_model, unused_sentence

    configs = [case.config for case in cases if case.function]
    keys = dict.fromkeys(key for config in configs for key in run_without_model(config)[1])
    if keys:
        print_to_stderr(unused_sentence(list(keys)))


def cases_to_measure(
    args: argparse.Namespace, cases: list[MeasureCase], file: RunsFile | None
) -> list[MeasureCase]:
    """The cases that the --append file does not have yet; prints how many it has."""
    finished = file.ids(failed=not args.again) if file is not None and args.cases else set()
    todo = [case for case in cases if case.id not in finished]
    if len(todo) < len(cases):
        present = f"{len(cases) - len(todo)} of {len(cases)} cases are in {args.append} already"
        print_to_stderr(f"{present}; {len(todo)} to do")
    return todo


def run_one(args: argparse.Namespace, cases: list[MeasureCase], file: RunsFile | None) -> int:
    """Measure one case and report it in full; returns 1 where the run failed."""
    from ..lab.measure.worker import measure_case

    with progress(cases) as (on_phase, _):
        settings = {"file": file, "minimum": args.find_minimum, "on_phase": on_phase}
        result = next(measure_cases(cases, measure_case, **settings))
    if result.refused:
        raise InputError(result.refused)
    from ..report.measurement import measurement_report

    show_answer(args, lambda: result.row, measurement_report(result, args.append))
    return 1 if result.failed else 0


def run_many(args: argparse.Namespace, cases: list[MeasureCase], file: RunsFile | None) -> int:
    """Measure many cases, one line each; a case that fails is a result, too."""
    from ..lab.measure.worker import measure_case
    from ..report.lines import plain
    from ..report.measurement import case_line

    results: list[CaseResult] = []
    lines: list[str] = []
    stdout_taken = args.format == "json" or args.output is not None
    try:
        with progress(cases, stdout_taken=stdout_taken) as (on_phase, finished):
            settings = {"file": file, "minimum": args.find_minimum, "on_phase": on_phase}
            for result in measure_cases(cases, measure_case, **settings):
                results.append(result)
                lines.append(plain([case_line(result)]))
                finished(lines[-1])
    except KeyboardInterrupt:
        kept = f"{len(results)} finished cases are in {args.append}"
        print_to_stderr(f"stopped; {kept}, and the same command continues from there")
        raise
    failed = sum(bool(result.failed) for result in results)
    refused = sum(bool(result.refused) for result in results)
    counts = f"{len(results) - failed - refused} measured, {failed} failed, {refused} refused"
    ending = f"{counts}; gpu-mem-calc backtest {args.append} scores them"
    if args.format == "json":
        from ..report.encode import to_json

        write(to_json([result.row for result in results if result.row]), args.output)
        print_to_stderr(ending)
    elif args.output:
        write("\n".join([*lines, ending]), args.output)
    else:
        write(ending)
    return 0


def check_options(args: argparse.Namespace) -> None:
    """Raise every pair of options that exclude each other."""
    kept = "--cases needs --append FILE, where every finished case is kept"
    many, search, between = bool(args.cases), args.find_minimum, args.between is not None
    checks = [
        (many and (args.config or args.preset), "give one of --config, --preset and --cases"),
        (many and not args.append, kept),
        *(
            (many and getattr(args, name), f"--{name} is for one run; leave it out with --cases")
            for name in ("snapshot", "id")
        ),
        (many and args.function, "--function is for one run; a case names its own in 'function'"),
        (search and args.cap is not None, "--find-minimum tries caps itself; leave --cap out"),
        (between and not search, "--between is for --find-minimum; add it, or leave --between out"),
        (between and args.snapshot, "--snapshot is of a run without a cap; leave --between out"),
        (args.again and not many, "--again is for --cases; one run is always measured"),
    ]
    problems = [text for wrong, text in checks if wrong]
    if problems:
        raise InputError(problems)


def run_name(args: argparse.Namespace) -> str:
    """The name of a result: --id, else the preset, the file or the function of the run."""
    if args.id or args.preset:
        return str(args.id or args.preset)
    return Path(args.config).stem if args.config else (args.function or "").replace(":", ".")


def conditions(args: argparse.Namespace) -> dict[str, Any]:
    """The fields of a `MeasureCase` that the options set; they override those of a file."""
    options = {
        "rank": args.rank,
        "steps": args.steps,
        "cap_bytes": args.cap,
        "bounds_bytes": args.between,
        "alloc_conf": args.alloc_conf,
        "timeout": args.timeout,
    }
    return {key: value for key, value in options.items() if value is not None}


@contextmanager
def progress(
    cases: list[MeasureCase], *, stdout_taken: bool = False
) -> Iterator[tuple[OnPhase, Callable[[str], None]]]:
    """Yields two functions: one shows the phase of a case, the other a finished case's line.

    On a terminal the phase is in a progress bar, elsewhere it is not shown. `stdout_taken` sends
    the lines to stderr, where stdout is for the result.
    """

    def write_line(text: str) -> None:
        if stdout_taken:
            print_to_stderr(text, begins="")
        else:
            write(text)

    if not takes_escapes(sys.stderr):
        yield (lambda case, phase: None), write_line
        return
    with ProgressBar(sys.stderr, len(cases)) as bar:
        bar.show(printable(cases[0].id))

        def on_phase(case: MeasureCase, phase: str) -> None:
            bar.show(printable(f"{case.id} {phase}"))

        def finished(text: str) -> None:
            if stdout_taken or sys.stdout.isatty():
                bar.print_above(printable(text))
            else:
                write(text)
            bar.show(bar.label, bar.finished + 1)

        yield on_phase, finished


def run_ranks(args: argparse.Namespace, place: RankPlace) -> int:
    """Measure as one rank of a launcher's job; returns the exit code."""
    end_with_torchrun()
    try:
        check_options(args)
        check_launched(args)
        if args.ray is not None:
            raise InputError("--ray starts every rank itself; leave the other launcher out")
        return run_rank(args, place)
    except InputError as problem:
        if not leave_problems(problem):
            raise
        return 2


def check_launched(args: argparse.Namespace) -> None:
    """Raise for options that are for one GPU alone."""
    if args.cases or args.find_minimum:
        raise InputError(
            "under a launcher measure takes one run, without --cases and --find-minimum"
        )
    if args.rank is not None:
        raise InputError("--rank: the launcher says which rank each process is; leave it out")
    if args.timeout is not None:
        raise InputError(
            "--timeout is for a case on one GPU; a launcher ends its ranks itself: leave it out"
        )


def run_rank(args: argparse.Namespace, place: RankPlace) -> int:
    """Measure this rank; rank 0 appends and reports the rows of all."""
    require_torch()
    settings = {"values": function_values(args), "snapshot": args.snapshot, **conditions(args)}
    name, data = run_name(args), run_data(args)
    case = MeasureCase(id=name, config=data, function=args.function, **settings)
    file = RunsFile(args.append) if args.append and place.rank == 0 else None
    rows = measure_rank(case, place, args.append)
    if not rows:
        return 0
    if file is not None:
        taken = file.ids()
        for row in rows:
            row["id"] = fresh_id(row["id"], taken)
            file.add(row)
    from ..report.measurement import ranks_report

    show_answer(args, lambda: rows, ranks_report(rows, args.append))
    return 0


def run_on_ray(args: argparse.Namespace) -> int:
    """Check the run, then start every rank on a Ray cluster; returns the exit code."""
    check_launched(args)
    function = (args.function, function_values(args))
    check_ranks(program(run_data(args), *function).num_ranks, args.ray.ranks)
    return run_over_ray(args.ray, ["-m", "gpu_mem_calculator", "measure", *rank_words(args)])


def rank_words(args: argparse.Namespace) -> list[str]:
    """The options of this command that every rank gets."""
    words = [*run_words(args), *function_words(args)]
    for name in RANK_OPTIONS:
        if getattr(args, name) is not None:
            words += [option_name(name), str(getattr(args, name))]
    return words + (["--cap", f"{args.cap}B"] if args.cap is not None else [])
