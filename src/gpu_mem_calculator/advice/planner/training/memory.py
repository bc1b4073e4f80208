"""The memory of many set-ups at once, by the same ledgers as a single estimate."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from ....ledger.mesh import Mesh
from ....ledger.num import Num, larger
from ....run.run import Run
from ....runfile.resolve.resolved_run import ResolvedRun
from ....training.step.layer_groups import equal_layers


def stage_axis(run: Run) -> Any:
    """The pipeline stages of which one is the busiest, on an array dimension before all others.

    Where all layers are equal, the stages between the first and the last one differ only in the
    micro-batches in flight, of which the second stage has most.
    """
    import numpy as np

    pp: Any = run.mesh.pp
    if isinstance(pp, int):
        return 0 if pp == 1 else np.arange(pp).reshape(-1, 1, 1)
    if equal_layers(run):
        return np.concatenate([0 * pp, np.minimum(1, pp - 1), pp - 1])
    return np.minimum(np.arange(int(pp.max())).reshape(-1, 1, 1), pp - 1)


def peak_bytes(resolved: ResolvedRun, run: Run) -> Any:
    """The highest instant of the busiest stage, start-up included, of each set-up in `run`."""
    import numpy as np

    run = replace(run, stage=stage_axis(run))
    engine = resolved.engine
    ledgers = engine.ledgers(run) if engine.ledgers is not None else [engine.ledger(run)]
    highest: Num = 0
    for ledger in ledgers:
        highest = larger(highest, ledger.peak())
    array = np.asarray(highest)
    return array.max(axis=0, keepdims=True) if array.ndim == 3 else array


def outside_bytes(resolved: ResolvedRun, run: Run) -> Any:
    """What CUDA and NCCL take outside torch, of each set-up in `run`; once for each mesh."""
    import numpy as np

    mesh: Any = run.mesh
    grid = np.broadcast_arrays(mesh.dp, mesh.tp, mesh.pp, mesh.cp, mesh.ep)
    rows = np.stack([axis.ravel() for axis in grid], axis=1)
    meshes, places = np.unique(rows, axis=0, return_inverse=True)
    sizes = [_mesh_bytes(resolved, *map(int, one)) for one in meshes]
    return np.array(sizes, dtype="int64")[places].reshape(grid[0].shape)


def _mesh_bytes(resolved: ResolvedRun, dp: int, tp: int, pp: int, cp: int, ep: int) -> int:
    mesh = Mesh(dp=dp, tp=tp, pp=pp, cp=cp, ep=ep)
    alone = replace(resolved, run=replace(resolved.run, mesh=mesh))
    return sum(size for _, size, _ in alone.outside_torch)


def highest_stage(resolved: ResolvedRun) -> int:
    """The highest instant of the busiest stage, start-up included, of one set-up."""
    run, engine = resolved.run, resolved.engine
    stages = range(int(run.mesh.pp))
    return max(int(engine.ledger(replace(run, stage=stage)).peak()) for stage in stages)
