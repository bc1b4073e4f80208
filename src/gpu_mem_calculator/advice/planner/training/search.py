"""The whole space: validity, memory and time of every set-up, structure by structure."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from ....estimates.machine import machine_of
from ....estimates.margin import margin_of
from ....run.run import Run
from ....runfile.resolve.resolved_run import ResolvedRun
from ....timing.training.step import step_seconds
from ....training.engines import engine_row
from ....training.rules import problems
from .axes import PIPE, RANK
from .memory import highest_stage, outside_bytes, peak_bytes
from .structures import Structure, makes_up, size_settings, with_sizes

BINS = 50  # steps of the card's memory, of each of which the fastest set-up is kept
KEPT = 64  # fastest set-ups of a structure that are kept


class SetUp(Struct, frozen=True, kw_only=True):
    """One set-up by its ledger: its sizes, the bytes that it takes, its seconds."""

    structure: Structure
    sizes: Mapping[str, int]
    allocated_bytes: int
    total_bytes: int  # with what is outside torch, and the least margin
    seconds: float


def named_settings(set_up: SetUp) -> dict[str, Any]:
    """The keys of a run file by which a set-up is named, with their values."""
    settings = {**set_up.structure.settings, **size_settings(set_up.sizes)}
    return {key: value for key, value in settings.items() if value is not None}


class Found(Struct, kw_only=True):
    """What a search found: counts, the set-ups worth keeping, and the one that takes least."""

    set_ups: int = 0
    feasible: int = 0
    seconds: float = 0.0
    kept: list[SetUp] = field(default_factory=list)
    smallest: SetUp | None = None


class Evaluated(Struct, frozen=True, kw_only=True):
    """Arrays over a structure's pipes and ranks."""

    valid: Any
    allocated: Any
    total: Any
    seconds: Any


def search(
    structures: Iterable[Structure],
    global_batch: int,
    progress: Callable[[int], None] | None = None,
) -> Found:
    """Evaluate every set-up of some structures; `progress` gets how many are done."""
    found, begin = Found(), time.perf_counter()
    outside: dict[Any, Any] = {}
    for done, structure in enumerate(structures, 1):
        collect(found, structure, evaluate(structure, global_batch, outside))
        if progress is not None:
            progress(done)
    found.seconds = time.perf_counter() - begin
    return found


def grid_run(structure: Structure, global_batch: int) -> Run:
    """The structure's run with all its sizes as arrays: a dimension for stages, one for pipes, one
    for ranks.
    """
    import numpy as np

    sizes: dict[str, Any] = {}
    for axes, rows, shape in (
        (PIPE, structure.pipes, (1, -1, 1)),
        (RANK, structure.ranks, (1, 1, -1)),
    ):
        for axis, column in zip(axes, np.array(rows, dtype="int64").T, strict=True):
            same = bool((column == column[0]).all())
            sizes[axis] = int(column[0]) if same else column.reshape(shape)
    num_gpus = structure.resolved.hardware.num_gpus
    dp = np.maximum(num_gpus // (sizes["tp"] * sizes["pp"] * sizes["cp"]), 1)
    micro_batches = np.maximum(global_batch // (dp * sizes["batch"]), 1)
    return with_sizes(structure.resolved.run, sizes, dp, micro_batches)


def valid_sizes(structure: Structure, run: Run, global_batch: int) -> Any:
    """Which pipes and ranks go together: they make up the GPUs and the batch, interleaved
    micro-batches are a multiple of the stages, and experts are shared by data-parallel ranks.
    """
    import numpy as np

    mesh: Any = run.mesh
    batches: Any = run.micro_batches
    num_gpus = structure.resolved.hardware.num_gpus
    whole = mesh.dp * mesh.tp * mesh.pp * mesh.cp == num_gpus
    step = batches * mesh.dp * run.batch == global_batch
    interleaved = (run.virtual_stages == 1) | (batches % mesh.pp == 0)
    valid: Any = whole & step & interleaved & (mesh.dp * mesh.cp % mesh.ep == 0)
    for size, values in (("dp", mesh.dp), ("micro_batches", batches)):
        if size in structure.derived:
            valid = valid & np.isin(values, structure.derived[size])
    return valid


def evaluate(structure: Structure, global_batch: int, outside: dict[Any, Any]) -> Evaluated:
    """Validity, memory and time of every set-up of a structure."""
    if not engine_row(structure.engine).array_sizes:
        return one_by_one(structure, global_batch)
    import numpy as np

    resolved, run = structure.resolved, grid_run(structure, global_batch)
    key = (structure.pipes, structure.ranks)
    if key not in outside:
        outside[key] = outside_bytes(resolved, run)
    allocated = peak_bytes(resolved, run)
    seconds = step_seconds(run, structure.engine, machine_of(resolved.hardware)).estimate
    arrays = {
        "valid": valid_sizes(structure, run, global_batch),
        "allocated": allocated,
        "total": allocated + (allocated * _share(structure)).astype("int64") + outside[key],
        "seconds": seconds,
    }
    shape = (1, len(structure.pipes), len(structure.ranks))
    return Evaluated(**{name: np.broadcast_to(a, shape)[0] for name, a in arrays.items()})


def one_by_one(structure: Structure, global_batch: int) -> Evaluated:
    """The same for an engine whose ledger takes one mesh at a time: a set-up after the other.

    Where a micro-batch does not fit, a larger one on the same mesh does not either; it is given the
    memory of the smaller one.
    """
    import numpy as np

    shape = (len(structure.pipes), len(structure.ranks))
    valid = np.zeros(shape, dtype=bool)
    allocated, total = np.zeros(shape, dtype="int64"), np.zeros(shape, dtype="int64")
    seconds = np.full(shape, np.inf)
    machine, has = machine_of(structure.resolved.hardware), structure.resolved.hardware.memory_bytes
    too_large: dict[tuple[int, ...], int] = {}
    for index in np.ndindex(shape):
        sizes = structure.sizes(*index)
        resolved = at_sizes(structure, sizes, global_batch)
        if resolved is None:
            continue
        mesh = (index[0], *structure.ranks[index[1]][:-1])
        peak = too_large[mesh] if mesh in too_large else highest_stage(resolved)
        valid[index], allocated[index] = True, peak
        total[index] = peak + int(peak * _share(structure)) + _outside(resolved)
        if total[index] > has:
            too_large[mesh] = peak
        else:
            seconds[index] = step_seconds(resolved.run, structure.engine, machine).estimate
    return Evaluated(valid=valid, allocated=allocated, total=total, seconds=seconds)


def _share(structure: Structure) -> float:
    """The margin as a share of the bytes that a run needs."""
    return margin_of(structure.resolved.run, structure.engine).share


def _outside(resolved: ResolvedRun) -> int:
    return sum(size for _, size, _ in resolved.outside_torch)


def at_sizes(
    structure: Structure, sizes: Mapping[str, int], global_batch: int
) -> ResolvedRun | None:
    """One set-up; None where a rule refuses it, or it does not make up GPUs and batch."""
    num_gpus = structure.resolved.hardware.num_gpus
    if not makes_up(sizes, num_gpus, global_batch):
        return None
    dp = num_gpus // (sizes["tp"] * sizes["pp"] * sizes["cp"])
    run = with_sizes(structure.resolved.run, sizes, dp, global_batch // (dp * sizes["batch"]))
    derived = {"dp": dp, "micro_batches": run.micro_batches}
    if any(derived[size] not in values for size, values in structure.derived.items()):
        return None
    if next(problems(run, structure.resolved.engine), None) is not None:
        return None
    return replace(structure.resolved, run=run)


def collect(found: Found, structure: Structure, arrays: Evaluated) -> None:
    """Count the set-ups of a structure, and keep the fastest, overall and by memory."""
    import numpy as np

    has = structure.resolved.hardware.memory_bytes
    fits = arrays.valid & (arrays.total <= has)
    found.set_ups += int(arrays.valid.sum())
    found.feasible += int(fits.sum())
    if arrays.valid.any():
        least = np.argmin(np.where(arrays.valid, arrays.total, np.iinfo("int64").max))
        smallest = _set_up(structure, arrays, int(least))
        if found.smallest is None or smallest.total_bytes < found.smallest.total_bytes:
            found.smallest = smallest
    places = np.flatnonzero(fits)
    if not len(places):
        return
    order = places[np.argsort(arrays.seconds.ravel()[places], kind="stable")]
    bins = arrays.total.ravel()[order] * BINS // has
    _, first = np.unique(bins, return_index=True)
    wanted = dict.fromkeys([*order[:KEPT].tolist(), *order[np.sort(first)].tolist()])
    found.kept += [_set_up(structure, arrays, place) for place in wanted]


def _set_up(structure: Structure, arrays: Evaluated, place: int) -> SetUp:
    """The set-up at one place of a structure's arrays."""
    pipe, rank = divmod(place, len(structure.ranks))
    return SetUp(
        structure=structure,
        sizes=structure.sizes(pipe, rank),
        allocated_bytes=int(arrays.allocated[pipe, rank]),
        total_bytes=int(arrays.total[pipe, rank]),
        seconds=float(arrays.seconds[pipe, rank]),
    )
