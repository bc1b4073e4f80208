"""`measure` of a real job: as one rank under a launcher, or starting every rank on Ray."""

from __future__ import annotations

import argparse

from ..lab.measure.card import require_torch
from ..lab.measure.cases_file import MeasureCase, fresh_id
from ..lab.measure.program import program
from ..lab.measure.ranks import RankPlace, check_ranks, measure_rank
from ..lab.measure.ray_cluster import run_over_ray
from ..lab.measure.runs_file import RunsFile
from ..lab.measure.torchrun import end_with_torchrun, leave_problems
from ..runfile.text.errors import InputError
from .function import function_values, function_words
from .measure import check_options, conditions, run_name
from .output import show_answer
from .parser import option_name
from .run_source import run_data, run_words

# Options, by argparse's names, that --ray passes to every rank besides those of the run.
RANK_OPTIONS = ("steps", "alloc_conf", "append", "id", "snapshot", "format", "output")


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
