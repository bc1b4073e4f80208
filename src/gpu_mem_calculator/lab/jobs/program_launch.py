"""The environment that a launcher gives each rank."""

from __future__ import annotations

import os

from . import deepspeed
from .groups import start_group
from .job import NCCL, Job

QUIET = {
    "HF_HUB_OFFLINE": "1",
    "WANDB_MODE": "disabled",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_DATASETS_OFFLINE": "1",
}


def launch(job: Job) -> None:
    """Set what torchrun sets for this rank, and start the process group; nothing is downloaded."""
    os.environ.update(QUIET)
    if job.resolved.engine.name == "deepspeed":
        deepspeed.start(job)
        return
    ranks = job.resolved.hardware.num_gpus
    if ranks == 1 or job.world.process_group == NCCL:
        start_group(job)
        return
    local = job.resolved.run.gpus_per_node
    os.environ.update(
        RANK=str(job.world.rank),
        WORLD_SIZE=str(ranks),
        LOCAL_RANK="0",  # the only GPU of this machine
        LOCAL_WORLD_SIZE=str(min(local, ranks)),
        MASTER_ADDR="localhost",
        MASTER_PORT="29500",
    )
    start_group(job)
