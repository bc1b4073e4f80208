"""One job: the world it runs in, its process group, and the module of this package that runs it."""

from __future__ import annotations

import os
from collections.abc import Callable
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
    engine = job.resolved.engine.name
    if engine not in TRAINERS:
        works = f"it works for {', '.join(TRAINERS)}"
        raise InputError(f"engine.type={engine!r} cannot be run here, only estimated; {works}")
    if job.resolved.run.arch.implementation == "nanotron":
        code = "model.implementation='nanotron'"
        raise InputError(f"{code} cannot be run here, only estimated; leave it out")
    if job.resolved.run.parameters_given is not None:
        why = "a model that runs has its own count: leave it out"
        raise InputError(f"model.num_parameters scales an estimate; {why}")
    if job.resolved.run.documents > 1 and job.file.program is None:
        why = "cannot be run here, only estimated, except as a program; leave it out"
        raise InputError(f"training.packed_documents={job.resolved.run.documents} {why}")
    if job.file.program is not None:
        import_module(".program", __package__).train(job)
        return
    if job.resolved.run.saving:
        raise InputError("training.saving cannot be run here, only estimated; leave it out")
    if job.resolved.run.rollout is not None:
        fix = "measure a program, such as trl.GRPOTrainer"
        raise InputError(f"training.generation cannot be run here, only estimated; {fix}")
    if job.build is not None and engine not in FUNCTION_ENGINES:
        works = f"--function works for {', '.join(FUNCTION_ENGINES)}"
        raise InputError(f"engine.type={engine!r} makes its model itself; {works}")
    import_module(f".{TRAINERS[engine]}", __package__).train(job)


def start_group(job: Job) -> None:
    """Start the process group of the job's world."""
    kind, ranks = job.world.process_group, job.resolved.hardware.num_gpus
    if kind == FAKE:
        fake_group(job.world.rank, ranks)
    elif kind == NCCL:
        import torch.distributed as dist

        if "RANK" in os.environ:  # under a launcher
            dist.init_process_group("nccl")
        else:
            dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    else:
        assert kind == NONE


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
