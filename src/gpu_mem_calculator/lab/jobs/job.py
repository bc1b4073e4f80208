"""One job: the world it runs in, its process group, and the module of this package that runs it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

from msgspec import Struct

from ...run.run import Run
from ...runfile.config import RunFile
from ...runfile.resolve.resolved_run import ResolvedRun
from ...runfile.text.errors import InputError
from ...training.engines import engine_row, engine_rows

# Engine -> the module of this package whose `train(job)` runs it.
TRAINERS = {name: row.job for name, row in engine_rows().items() if row.job}
# Engines that train a user's model.
FUNCTION_ENGINES = tuple(name for name in TRAINERS if not engine_row(name).builds_models)
NONE, FAKE, NCCL = "none", "fake", "nccl"


class World(Struct, frozen=True, kw_only=True):
    """Where a job runs, and who observes it.

    - `device`: "cuda", or "cpu" where tensors are fake
    - `mark`: called with its name at the end of each phase
    - `watch`: called with the model and its optimizer
    - `process_group`: NONE, FAKE (one rank of a job of any size) or NCCL (real)
    - `rank`, `steps`: the rank to play, and the number of steps
    - `has_weights`: False where tensors are fake, and there are no values to save
    - `stand_ins`: gives a model what has kernels of its own, where tensors are fake
    """

    device: str
    mark: Callable[[str], None]
    watch: Callable[[Any, Any], None] | None = None
    process_group: str = NONE
    rank: int = 0
    steps: int = 3
    has_weights: bool = True
    stand_ins: Callable[[Any, Run], None] | None = None


class Job(Struct, frozen=True, kw_only=True):
    """A run file, the run resolved from it, and the world it runs in."""

    file: RunFile
    resolved: ResolvedRun
    world: World
    build: Callable[[], tuple[Any, Any]] | None = None  # makes the user's model and batch


def run(job: Job) -> None:
    """Train the run to the end of the last step; raises for what cannot be run."""
    engine, program = job.resolved.engine.name, job.file.program is not None
    for problem in _refusals(job, engine, program=program):
        raise InputError(problem)
    module = "program" if program else TRAINERS[engine]
    import_module(f".{module}", __package__).train(job)


def _refusals(job: Job, engine: str, *, program: bool) -> Iterator[str]:
    """A sentence for each choice that is estimated but cannot be run."""
    run, only = job.resolved.run, "cannot be run here, only estimated"
    if engine not in TRAINERS:
        yield f"engine.type={engine!r} {only}; it works for {', '.join(TRAINERS)}"
    if run.arch.implementation == "nanotron":
        yield f"model.implementation='nanotron' {only}; leave it out"
    if run.parameters_given is not None:
        why = "a model that runs has its own count: leave it out"
        yield f"model.num_parameters scales an estimate; {why}"
    if program:
        return
    if job.resolved.lengths is not None:
        yield f"training.lengths {only}; measure a program, or give training.seq_len"
    if run.documents > 1:
        yield f"training.packed_documents={run.documents} {only}, except as a program; leave it out"
    if run.saving:
        yield f"training.saving {only}; leave it out"
    if run.rollout is not None:
        yield f"training.generation {only}; measure a program, such as trl.GRPOTrainer"
    if job.build is not None and engine not in FUNCTION_ENGINES:
        works = f"--function works for {', '.join(FUNCTION_ENGINES)}"
        yield f"engine.type={engine!r} makes its model itself; {works}"


def start_group(job: Job) -> None:
    """Start the process group of the job's world."""
    kind, ranks = job.world.process_group, job.resolved.hardware.num_gpus
    if kind == FAKE:
        fake_group(job.world.rank, ranks)
    elif kind == NCCL:
        import torch.distributed as dist

        alone = {} if launched() else {"store": dist.HashStore(), "rank": 0, "world_size": 1}
        dist.init_process_group("nccl", **alone)


def launched() -> bool:
    """Whether a launcher started this process as one of its ranks."""
    return "RANK" in os.environ


def fake_group(rank: int, ranks: int) -> None:
    """Start torch's fake process group: collectives return at once and move nothing."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)


def mesh_of(job: Job, sizes: tuple[int, ...], names: tuple[str, ...]) -> Any:
    """A device mesh over the ranks of the job.

    It reads its tensor of ranks, so that tensor must be real: modes are off here.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes():
        return init_device_mesh(job.world.device, sizes, mesh_dim_names=names)
