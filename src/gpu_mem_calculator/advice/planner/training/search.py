"""The whole space: validity, memory and time of every set-up, structure by structure."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from ....estimates.machine import machine_of
from ....estimates.margin import margin_of
from ....estimates.node import MARGIN
from ....ledger.remember import remembered
from ....run.run import Run
from ....runfile.resolve.resolved_run import ResolvedRun
from ....timing.training.step import step_seconds
from ....training.engines import engine_row
from ....training.rules import problems
from ....training.step.layer_groups import equal_layers
from .axes import BATCH, CHUNKS, CP, EP, MOST_PP, PIPE, PP, RANK, TP
from .memory import node_bytes, outside_bytes, peak_bytes
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
    """What a search found: counts, the set-ups worth keeping, and the one that takes least.

    - on_cards: how many fit on the cards, whatever their node has
    - least_node_bytes: the least memory of a node that one of these takes; 0 where it does not
      matter, since nobody says what a node has
    """

    set_ups: int = 0
    feasible: int = 0
    on_cards: int = 0
    least_node_bytes: int = 0
    seconds: float = 0.0
    kept: list[SetUp] = field(default_factory=list)
    smallest: SetUp | None = None


class Evaluated(Struct, frozen=True, kw_only=True):
    """Arrays over a structure's valid set-ups, by their indices into its pipes and ranks."""

    pipes: Any
    ranks: Any
    allocated: Any
    total: Any
    node: Any
    seconds: Any


def search(
    structures: Iterable[Structure],
    global_batch: int,
    progress: Callable[[int], None] | None = None,
) -> Found:
    """Evaluate every set-up of some structures; `progress` gets how many are done."""
    begin, every = time.perf_counter(), list(structures)
    rows = [(structure.pipes, structure.ranks) for structure in every]
    first = {row: number for number, row in reversed([*enumerate(rows)])}
    parts = [Found() for _ in every]
    # those with the same sizes one after the other: what they share is remembered that long
    for done, number in enumerate(sorted(range(len(every)), key=lambda n: first[rows[n]]), 1):
        structure = every[number]
        collect(parts[number], structure, evaluate(structure, global_batch))
        if progress is not None:
            progress(done)
    found = reduce(joined, parts, Found())
    found.seconds = time.perf_counter() - begin
    return found


def joined(one: Found, other: Found) -> Found:
    """What two searches found; of equally small set-ups the first one's."""
    smallest = [found.smallest for found in (one, other) if found.smallest is not None]
    node = [found.least_node_bytes for found in (one, other) if found.least_node_bytes]
    return Found(
        set_ups=one.set_ups + other.set_ups,
        feasible=one.feasible + other.feasible,
        on_cards=one.on_cards + other.on_cards,
        least_node_bytes=min(node, default=0),
        kept=one.kept + other.kept,
        smallest=min(smallest, key=lambda set_up: set_up.total_bytes, default=None),
    )


class SizeGrid(Struct, frozen=True):
    """Set-ups of a structure: their indices into its pipes and ranks, and their sizes."""

    pipes: Any
    ranks: Any
    sizes: dict[str, Any]
    dp: Any
    micro_batches: Any

    def part(self, chosen: Any) -> SizeGrid:
        """Some of the set-ups."""
        sizes = {axis: _of_part(size, chosen) for axis, size in self.sizes.items()}
        dp, many = (_of_part(size, chosen) for size in (self.dp, self.micro_batches))
        return SizeGrid(self.pipes[chosen], self.ranks[chosen], sizes, dp, many)

    def of(self, run: Run) -> Run:
        """A run with these sizes."""
        return with_sizes(run, self.sizes, self.dp, self.micro_batches)


def _of_part(size: Any, chosen: Any) -> Any:
    """The sizes of some set-ups: an int where they are equal."""
    if isinstance(size, int):
        return size
    part = size[chosen]
    return int(part[0]) if len(part) and (part == part[0]).all() else part


def valid_grid(structure: Structure, global_batch: int) -> SizeGrid:
    """The set-ups that make up the GPUs and the batch, whose interleaved micro-batches are a
    multiple of the stages, and whose experts are shared by data-parallel ranks.
    """
    rows = structure.pipes, structure.ranks, tuple(structure.derived.items())
    return _valid_grid(*rows, structure.resolved.hardware.num_gpus, global_batch)


@remembered(4, always=True)
def _valid_grid(
    pipes: tuple[tuple[int, ...], ...],
    ranks: tuple[tuple[int, ...], ...],
    derived: tuple[tuple[str, tuple[int, ...]], ...],
    num_gpus: int,
    global_batch: int,
) -> SizeGrid:
    import numpy as np

    of_pipe, of_rank = np.array(pipes, dtype="int64"), np.array(ranks, dtype="int64")
    pipe, rank = (index.ravel() for index in np.indices((len(pipes), len(ranks))))
    sizes: dict[str, Any] = dict(zip(PIPE, of_pipe[pipe].T, strict=True))
    sizes |= dict(zip(RANK, of_rank[rank].T, strict=True))
    together = sizes[TP] * sizes[PP] * sizes[CP]
    dp = np.maximum(num_gpus // together, 1)
    many = np.maximum(global_batch // (dp * sizes[BATCH]), 1)
    valid = (dp * together == num_gpus) & (many * dp * sizes[BATCH] == global_batch)
    valid &= (sizes[CHUNKS] == 1) | (many % sizes[PP] == 0)
    valid &= dp * sizes[CP] % sizes[EP] == 0
    for name, allowed in derived:
        valid &= np.isin({"dp": dp, "micro_batches": many}[name], allowed)
    return SizeGrid(pipe, rank, sizes, dp, many).part(np.flatnonzero(valid))


def accepted_grid(structure: Structure, global_batch: int) -> SizeGrid:
    """The valid set-ups that the engine's rules accept."""
    import numpy as np

    grid = valid_grid(structure, global_batch)
    if engine_row(structure.engine).array_sizes:
        return grid
    accepted = [
        at_sizes(structure, structure.sizes(pipe, rank), global_batch) is not None
        for pipe, rank in zip(grid.pipes.tolist(), grid.ranks.tolist(), strict=True)
    ]
    return grid if all(accepted) else grid.part(np.flatnonzero(accepted))


def ledger_parts(structure: Structure, grid: SizeGrid) -> list[Any]:
    """The places of set-ups that one ledger of the engine takes.

    Sizes that are taken apart are each in a part of their own; without a pipeline a structure is
    another one. Layers of several kinds are on stages that differ.
    """
    import numpy as np

    row, count = engine_row(structure.engine), len(grid.pipes)
    if row.array_sizes:
        return [np.arange(count)]
    alone = row.apart | (set() if equal_layers(structure.resolved.run) else {PP})
    pp = grid.sizes[PP] if PP in alone else np.minimum(grid.sizes[PP], 2)
    tp = grid.sizes[TP] if TP in alone else 1
    kinds = np.broadcast_to(pp * (MOST_PP + 1) + tp, count)
    return [np.flatnonzero(kinds == kind) for kind in np.unique(kinds)]


def evaluate(structure: Structure, global_batch: int) -> Evaluated:
    """Memory and time of every valid set-up of a structure."""
    import numpy as np

    resolved, machine = structure.resolved, machine_of(structure.resolved.hardware)
    whole = accepted_grid(structure, global_batch)
    count = len(whole.pipes)
    if not count:
        return Evaluated(**dict.fromkeys(Evaluated.__struct_fields__, np.zeros(0)))
    allocated, node = np.zeros(count, dtype="int64"), np.zeros(count, dtype="int64")
    for places in ledger_parts(structure, whole):
        part = whole.part(places).of(resolved.run)
        allocated[places] = peak_bytes(resolved, part)
        if resolved.hardware.node_bytes is not None:
            node[places] = node_bytes(resolved, part)
    run = whole.of(resolved.run)
    outside = outside_bytes(resolved, run)
    seconds = step_seconds(run, structure.engine, machine).estimate
    return Evaluated(
        pipes=whole.pipes,
        ranks=whole.ranks,
        allocated=allocated,
        total=allocated + np.int64(allocated * _share(structure)) + outside,
        node=node,
        seconds=np.broadcast_to(seconds, count),
    )


def _share(structure: Structure) -> float:
    """The margin as a share of the bytes that a run needs."""
    return margin_of(structure.resolved.run, structure.engine).share


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
    """Count the set-ups of a structure, and keep the fastest, overall and by memory, and the one
    that takes least.
    """
    import numpy as np

    hardware = structure.resolved.hardware
    has, places = hardware.memory_bytes, np.flatnonzero(arrays.total <= hardware.memory_bytes)
    found.set_ups += len(arrays.total)
    found.on_cards += len(places)
    if hardware.node_bytes is not None and len(places):
        found.least_node_bytes = int(arrays.node[places].min() * (1 + MARGIN))
        places = places[arrays.node[places] * (1 + MARGIN) <= hardware.node_bytes]
    found.feasible += len(places)
    if len(arrays.total):
        found.smallest = _set_up(structure, arrays, int(np.argmin(arrays.total)))
    if not len(places):
        return
    order = places[np.argsort(arrays.seconds[places], kind="stable")]
    bins = arrays.total[order] * BINS // has
    _, first = np.unique(bins, return_index=True)
    wanted = dict.fromkeys([*order[:KEPT].tolist(), *order[np.sort(first)].tolist()])
    found.kept += [_set_up(structure, arrays, place) for place in wanted]


def _set_up(structure: Structure, arrays: Evaluated, place: int) -> SetUp:
    """The set-up at one place of a structure's arrays."""
    return SetUp(
        structure=structure,
        sizes=structure.sizes(int(arrays.pipes[place]), int(arrays.ranks[place])),
        allocated_bytes=int(arrays.allocated[place]),
        total_bytes=int(arrays.total[place]),
        seconds=float(arrays.seconds[place]),
    )
