"""The memory of many set-ups at once, by the same ledgers as a single estimate."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ....ledger.ledger import CPU, RANK_0, Ledger
from ....ledger.mesh import Mesh
from ....ledger.num import Num, larger
from ....ledger.remember import remembered
from ....run.cuda.nccl import nccl
from ....run.ranks import distinct_rows
from ....run.run import Run
from ....runfile.resolve.resolved_run import ResolvedRun
from ....training.engines import engine_row
from ....training.step.layer_groups import equal_layers


def busiest_stages(run: Run, engine: str) -> list[Any]:
    """The pipeline stages of which one is the busiest: in one array, on a dimension before that of
    the sizes, or one after the other where the engine's ledger takes one at a time.

    Where all layers are equal and stages share them equally, the stages between the first and the
    last one differ only in the micro-batches in flight, of which the second stage has most.
    """
    import numpy as np

    pp: Any = run.mesh.pp
    row, equal = engine_row(engine), equal_layers(run)
    if isinstance(pp, int) and pp == 1:
        return [0]
    if not (row.array_sizes or equal):
        return list(range(pp))
    if equal and (row.equal_stages or row.apart):
        return [np.stack(np.broadcast_arrays(0, np.minimum(1, pp - 1), pp - 1)).reshape(3, -1)]
    return [np.minimum(np.arange(np.max(pp)).reshape(-1, 1), pp - 1)]


def _ledgers(resolved: ResolvedRun, run: Run) -> Iterator[Ledger]:
    """The ledgers of the stages that may be the busiest, at each moment that may have the peak."""
    engine = resolved.engine
    for stage in busiest_stages(run, engine.name):
        staged = replace(run, stage=stage)
        yield from engine.ledgers(staged) if engine.ledgers else [engine.ledger(staged)]


def _highest(peaks: Iterable[Any]) -> Any:
    highest: Any = 0
    for peak in peaks:
        highest = larger(highest, peak.max(axis=0) if getattr(peak, "ndim", 1) == 2 else peak)
    return highest


def peak_bytes(resolved: ResolvedRun, run: Run) -> Any:
    """The highest instant of the busiest stage, start-up included, of each set-up in `run`."""
    return _highest(one.peak() for one in _ledgers(resolved, run))


def node_bytes(resolved: ResolvedRun, run: Run) -> Any:
    """What ranks take of their node's memory in start-up and steps, of each set-up in `run`."""
    ranks = resolved.hardware.gpus_per_node
    found = _ledgers(resolved, run)
    highest = _highest(one.peak(CPU) * ranks + one.peak(RANK_0) for one in found)
    return highest + ranks * resolved.host_libraries[1]


class JoinedMesh(Struct, frozen=True):
    """A mesh with what else decides its communicators."""

    mesh: Mesh
    gpus_per_node: int
    compute_capability: str
    options: dict[str, Any]


def outside_bytes(resolved: ResolvedRun, run: Run) -> Any:
    """What CUDA and NCCL take outside torch, of each set-up in `run`."""
    if run.options.get("tp_comm_overlap"):  # buffers that grow with the micro-batch
        return _of_each(run.mesh, run.batch, lambda mesh, batch: _alone(resolved, mesh, batch))
    keys = (run.options.get("sharding_strategy"), run.options.get("zero_stage"))
    streams = resolved.engine.side_streams(run)
    joined = _nccl_bytes(run.mesh, run.gpus_per_node, run.compute_capability, *keys, streams)
    return _alone(resolved, Mesh(), resolved.run.batch) + joined


@remembered(8)
def _nccl_bytes(
    mesh: Mesh, gpus: int, capability: str, strategy: Any, zero_stage: Any, streams: bool
) -> Any:
    keys = (gpus, capability, strategy, zero_stage, streams)
    return _of_each(mesh, 1, lambda one, batch: _nccl_of_one(one, *keys))


@remembered(4096, always=True)
def _nccl_of_one(
    mesh: Mesh, gpus: int, capability: str, strategy: Any, zero_stage: Any, streams: bool
) -> int:
    options = {"sharding_strategy": strategy, "zero_stage": zero_stage}
    parts = nccl(JoinedMesh(mesh, gpus, capability, options), streams=streams)
    return sum(size for _, size, _ in parts)


def _of_each(mesh: Mesh, batch: Num, bytes_of: Callable[[Mesh, int], int]) -> Any:
    """The bytes of each mesh and micro-batch, each different one asked once."""
    import numpy as np

    axes: Any = (mesh.dp, mesh.tp, mesh.pp, mesh.cp, mesh.ep, batch)
    first, places = distinct_rows(*axes)
    rows = np.stack(np.broadcast_arrays(*axes), axis=-1).reshape(-1, len(axes))[first]
    sizes = [
        bytes_of(Mesh(dp=dp, tp=tp, pp=pp, cp=cp, ep=ep), size)
        for dp, tp, pp, cp, ep, size in rows.tolist()
    ]
    return np.array(sizes, dtype="int64")[places]


def _alone(resolved: ResolvedRun, mesh: Mesh, batch: Num) -> int:
    """Bytes outside torch of one set-up."""
    alone = replace(resolved, run=replace(resolved.run, mesh=mesh, batch=batch))
    return sum(size for _, size, _ in alone.outside_torch)


def highest_stage(resolved: ResolvedRun) -> int:
    """The highest instant of the busiest stage, start-up included, of one set-up."""
    run, engine = resolved.run, resolved.engine
    stages = range(int(run.mesh.pp))
    return max(int(engine.ledger(replace(run, stage=stage)).peak()) for stage in stages)
