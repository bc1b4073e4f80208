"""torchrun, and torch.distributed's modules that do the same (torch 2.13.0 distributed/run.py)."""

from __future__ import annotations

from msgspec.structs import replace

from ..reading.command import Command
from .launcher_options import split_options

PROGRAMS = ("torchrun",)
MODULES = ("torch.distributed.run", "torch.distributed.launch", "torch.distributed.launcher")


def without_torchrun(command: Command) -> Command:
    """The command that torchrun starts, with the number of its GPUs and nodes."""
    options = split_options("torchrun", command.words[1:])
    nodes = options.last("nnodes") or command.environment.get("PET_NNODES", "1")
    each = options.last("nproc_per_node") or command.environment.get("PET_NPROC_PER_NODE", "1")
    count = nodes.rpartition(":")[2]  # an elastic job is MIN:MAX
    num_nodes = int(count) if count.isdecimal() else 1
    return replace(
        command,
        words=options.rest,
        module="module" in options.given,
        launcher="torchrun",
        num_nodes=num_nodes,
        num_gpus=int(each) * num_nodes if each.isdecimal() else None,  # auto, gpu
    )
