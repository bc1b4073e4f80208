"""How LLaMA-Factory's processes are started: GPUs, FSDP, the allocator."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from ..reading.command import Command
from ..reading.reading import Section
from ..translation.arguments import Values, filled

ALLOCATOR = "expandable_segments:True"
ON = ("true", "y", "1")


class FactoryProcesses(Struct, frozen=True, kw_only=True):
    """What a command says beside the arguments.

    - `num_gpus`: of all nodes, None where nothing says it; `ray`: the file says it, under USE_RAY
    - `allocator`: PYTORCH_CUDA_ALLOC_CONF of the processes
    - `megatron`: the program that takes the Trainer's place, by variables of the environment
    """

    num_gpus: int | None = None
    num_nodes: int = 1
    accelerate: Values | None = None
    allocator: str = ""
    ray: bool = True
    megatron: str = ""


def command_launch(command: Command, given: Values) -> FactoryProcesses:
    """The launch of a command.

    launcher.py launch: with several GPUs or FORCE_TORCHRUN it starts torchrun itself, and gives
    its processes expandable segments unless OPTIM_TORCH is off.
    """
    variables = command.environment
    nodes = max(command.num_nodes, command.count("NNODES") or 1)
    each = command.count("NPROC_PER_NODE")
    gpus = command.num_gpus if each is None else each * nodes
    own = command.program in ("llamafactory-cli", "lmf")
    starts = _on(variables, "FORCE_TORCHRUN") or (gpus or 1) > 1
    starts = own and starts and not _on(variables, "USE_RAY")
    allocator = variables.get("PYTORCH_CUDA_ALLOC_CONF", "")
    if starts and _on(variables, "OPTIM_TORCH", "1"):
        allocator = ALLOCATOR
    bridge = "megatron_bridge" if _on(variables, "USE_MEGATRON_BRIDGE") else ""
    return FactoryProcesses(
        num_gpus=gpus,
        num_nodes=nodes,
        accelerate=command.accelerate,
        allocator=allocator,
        ray=_on(variables, "USE_RAY"),
        megatron="mcore_adapter" if _on(variables, "USE_MCA") else bridge,
    )


def hardware(launch: FactoryProcesses, values: Values) -> Section:
    """The hardware section, as far as the command says it."""
    count = launch.num_gpus
    if count is None and launch.ray and values["ray_num_workers"] != 1:
        count = values["ray_num_workers"]
    nodes = launch.num_nodes if launch.num_nodes > 1 else None
    return filled(num_gpus=count, num_nodes=nodes)


def fsdp_version(launch: FactoryProcesses, values: Values) -> int:
    """The version of FSDP; 0 where it is not used.

    model_utils/checkpointing.py reads the version from the environment that accelerate sets.
    """
    accelerate = launch.accelerate or {}
    if str(accelerate.get("distributed_type", "")).upper() == "FSDP":
        return int((accelerate.get("fsdp_config") or {}).get("fsdp_version", 1))
    return 2 if values["fsdp"] or values["fsdp_config"] else 0


def _on(variables: Mapping[str, str], name: str, default: str = "0") -> bool:
    return variables.get(name, default).lower() in ON  # extras/misc.py is_env_enabled
