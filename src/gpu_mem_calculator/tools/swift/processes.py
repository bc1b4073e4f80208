"""How ms-swift's processes are started (cli/main.py get_torchrun_args, utils/env.py)."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from ..reading.command import Command
from ..reading.reading import Reading

VISIBLE = ("CUDA_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES")


class SwiftProcesses(Struct, frozen=True, kw_only=True):
    """Processes of all nodes, each with one GPU; None where nothing says it.

    - `distributed`: whether torchrun starts them; `spread`: GPUs of one process, above 1
    - `allocator`: PYTORCH_CUDA_ALLOC_CONF
    """

    count: int | None = None
    nodes: int = 1
    distributed: bool = False
    spread: int = 1
    allocator: str = ""
    accelerate: Mapping[str, object] | None = None


def command_processes(command: Command) -> SwiftProcesses:
    """NPROC_PER_NODE and NNODES start torchrun; without them there is one process, over whose
    visible GPUs the layers are spread.
    """
    variables = command.environment
    each, nodes = command.count("NPROC_PER_NODE"), command.count("NNODES")
    allocator = variables.get("PYTORCH_CUDA_ALLOC_CONF", variables.get("PYTORCH_ALLOC_CONF", ""))
    if command.launcher:
        return SwiftProcesses(
            count=command.num_gpus,
            nodes=command.num_nodes,
            distributed=(command.num_gpus or 2) > 1,
            allocator=allocator,
            accelerate=command.accelerate,
        )
    visible = _visible(variables)
    if each is None and nodes is None:
        spread = visible or 1
        return SwiftProcesses(count=1 if visible else None, spread=spread, allocator=allocator)
    local, number = each or 1, nodes or 1
    return SwiftProcesses(
        count=local * number,
        nodes=number,
        distributed=True,
        spread=max(1, (visible or local) // local),
        allocator=allocator,
    )


def add_hardware(reading: Reading, processes: SwiftProcesses) -> None:
    """Add the hardware section, and a limit where a process has several GPUs."""
    if processes.count is not None:
        reading.run["hardware"] = {"num_gpus": processes.count}
        if processes.nodes > 1:
            reading.run["hardware"]["num_nodes"] = processes.nodes
    if processes.spread > 1:
        why = "layers of one process are spread over its GPUs; the estimate has all of them on one"
        reading.limit(f"{processes.spread} GPUs of one process", why, "less")


def _visible(variables: Mapping[str, str]) -> int | None:
    text = next((variables[name] for name in VISIBLE if variables.get(name)), "")
    return len([one for one in text.split(",") if one.strip()]) or None
