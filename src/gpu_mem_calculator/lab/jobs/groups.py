"""Process groups: none, a real one, or a fake one that plays one rank of a job of any size."""

from __future__ import annotations

import os
from typing import Any

from .job import FAKE, NCCL, NONE, Job


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
