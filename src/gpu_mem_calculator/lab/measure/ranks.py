"""The real job under a launcher: every process is one rank with one GPU, and NCCL is real."""

from __future__ import annotations

import os
import traceback
from collections.abc import Mapping
from importlib import import_module
from typing import Any, NoReturn

from msgspec import Struct
from msgspec.structs import replace

from ...runfile.text.errors import InputError, print_to_stderr
from ..jobs.job import NCCL
from .card import NO_GPU
from .cases import failed_row, out_of_memory
from .cases_file import MeasureCase
from .child_process import ChildOutcome, error_line
from .program import program
from .runs_file import Row, RunsFile, with_try
from .worker import finished_row, prepared, row_environment, run_with_snapshot, set_allocator


class RankPlace(Struct, frozen=True, kw_only=True):
    """The rank of this process, the number of ranks, and both on this node."""

    rank: int
    ranks: int
    local_rank: int
    local_ranks: int = 1  # processes that the launcher started on this node


def launched_rank(environ: Mapping[str, str] = os.environ) -> RankPlace | None:
    """The place that torchrun or the deepspeed launcher set in the environment.

    None without a launcher, or with a single rank.
    """
    try:
        ranks, rank = int(environ["WORLD_SIZE"]), int(environ["RANK"])
        local = int(environ.get("LOCAL_RANK", rank))
        local_ranks = int(environ.get("LOCAL_WORLD_SIZE", local + 1))
    except (KeyError, ValueError):
        return None
    place = RankPlace(rank=rank, ranks=ranks, local_rank=local, local_ranks=local_ranks)
    return place if ranks > 1 else None


def measure_rank(case: MeasureCase, place: RankPlace, append: str | None) -> list[Row]:
    """Run this rank of the real job; returns the rows of all ranks on rank 0, none on others.

    A rank that fails cannot gather: it appends its row and exits, and the launcher ends the rest.
    """
    job = program(case.config, case.function, case.values)
    check_ranks(job.num_ranks, place.ranks)
    check_gpus(import_module("torch").cuda.device_count(), place)
    end = f".rank{place.rank}"
    snapshot = case.snapshot and case.snapshot + end
    case = replace(case, rank=place.rank, id=case.id + end, snapshot=snapshot)
    conf = set_allocator(case.alloc_conf or job.alloc_conf)
    import_module("torch").cuda.set_device(place.local_rank)
    messages: list[dict[str, Any]] = []
    known, head = row_environment(case, conf, NCCL), {"group": job.group}
    probe, world = prepared(case, known, head, messages.append, process_group=NCCL, rank=place.rank)
    try:
        run_with_snapshot(lambda: job.start(world), case.snapshot)
    except InputError:
        raise
    except Exception as error:
        end_failed_rank(case, error, messages, append)
    row = finished_row(case, job.group, probe, known)
    return gather(with_try(row, case.cap_bytes), place)


def check_ranks(ranks: int, started: int) -> None:
    """Raise where the launcher started another number of processes than the run has GPUs."""
    if ranks != started:
        fix = f"start {ranks}, or --set hardware.num_gpus={started}"
        launcher = f"the launcher starts {started} processes"
        raise InputError(f"hardware.num_gpus={ranks}, but {launcher}; {fix}")


def check_gpus(shown: int, place: RankPlace) -> None:
    """Raise where this node has fewer GPUs than processes."""
    if not shown:
        raise InputError(NO_GPU.format(why="this node shows none"))
    if shown < place.local_ranks:
        started = f"the launcher started {place.local_ranks} processes on a node"
        fix = f"start {shown} on each (--nproc-per-node)"
        raise InputError(f"{started} that shows {shown} GPU{'s' * (shown > 1)}; {fix}")


def end_failed_rank(
    case: MeasureCase, error: Exception, messages: list[dict[str, Any]], append: str | None
) -> NoReturn:
    """Append the row of a rank that failed, print why, and exit: the others would wait forever."""
    kinds = tuple(kind.__name__ for kind in type(error).__mro__)
    outcome = ChildOutcome(error=error_line(error), kinds=kinds)
    row = failed_row(case, outcome, messages)
    if not out_of_memory(outcome):
        traceback.print_exception(error)
    print_to_stderr(f"rank {case.rank}: {row['failed']}")
    try:
        if append is not None:
            RunsFile(append).add(row)
    except InputError as problem:
        print_to_stderr(str(problem))
    os._exit(1)


def gather(row: Row, place: RankPlace) -> list[Row]:
    """The rows of all ranks on rank 0, none on others."""
    dist = import_module("torch").distributed
    rows: list[Any] = [None] * place.ranks
    dist.all_gather_object(rows, row)
    dist.destroy_process_group()
    return rows if place.rank == 0 else []
