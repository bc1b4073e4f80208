"""A run file as something that runs in a world: training by its engine, or inference."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from ..core.errors import InputError
from ..core.model_source import find_model
from ..core.resolve import resolve
from ..core.resolved_run import ResolvedRun
from ..core.runfile import read
from ..jobs.function import UserFunction, run_without_model
from ..jobs.job import FAKE, NCCL, NONE, Job, World, run
from ..jobs.model import NO_PROGRAM

EIGHT_BIT = ("adamw_8bit", "paged_adamw_8bit", "lion_8bit")


class MeasuredProgram(Struct, frozen=True, kw_only=True):
    """What runs, as how many ranks, and how a process that is alone plays one of them."""

    start: Callable[[World], None]
    group: str  # the group of measured runs that it belongs to
    num_ranks: int = 1
    process_group: str = NONE
    alloc_conf: str | None = None


def program(
    config: Mapping[str, Any], function: str | None = None, values: Mapping[str, Any] | None = None
) -> MeasuredProgram:
    """The program of a run file; every problem of the file is raised at once.

    A function makes the model and the batch in the file's place. It is loaded as the job starts:
    what a module does as it is imported is no business of the process that forks.
    """
    if config.get("inference") is not None:
        if function is not None:
            raise InputError(["inference runs the run file's model; leave --function out"])
        return _inference(config)
    file = read(config if function is None else run_without_model(config)[0])
    resolved = resolve(file)

    def start(world: World) -> None:
        build = None if function is None else _user_function(resolved, function, values, world)
        run(Job(file=file, resolved=resolved, world=world, build=build))

    return MeasuredProgram(
        start=start,
        group=group_name(resolved),
        num_ranks=resolved.hardware.num_gpus,
        process_group=_process_group(resolved),
        alloc_conf=getattr(file.training, "pytorch_alloc_conf", None),
    )


def _user_function(
    resolved: ResolvedRun, function: str, values: Mapping[str, Any] | None, world: World
) -> UserFunction:
    """The function, on the GPU as a whole; FSDP takes it from the host, shard by shard."""
    sharded = resolved.engine.name == "fsdp"
    return UserFunction(function, resolved.run.precision, values, device=world.device,
                    made_on="cpu" if sharded else None)  # fmt: skip


def _inference(config: Mapping[str, Any]) -> MeasuredProgram:
    from ..jobs.inference import infer, settings

    given = config["inference"]
    if not isinstance(given, Mapping):
        raise InputError([f"inference={given!r} must be an object"])
    settings(given)
    file = read({k: v for k, v in config.items() if k != "inference"})
    model = find_model(file.model).config
    if model is None:
        raise InputError([NO_PROGRAM])
    return MeasuredProgram(start=lambda world: infer(given, model, world), group="inference")


def group_name(resolved: ResolvedRun) -> str:
    """The group that a training run belongs to in a file of measured runs."""
    run, name = resolved.run, resolved.engine.name
    if run.adapter is not None or run.quantization or run.optimizer in EIGHT_BIT:
        return "peft"
    if name == "pytorch_ddp":
        return "single" if resolved.hardware.num_gpus == 1 else "ddp"
    return "megatron" if name.startswith("megatron") else name


def _process_group(resolved: ResolvedRun) -> str:
    """How one process plays one rank.

    DDP's buckets are the same whatever the number of ranks, so a real communicator of one rank
    serves; what shards needs the real number, and the fake group has it.
    """
    if resolved.engine.name == "pytorch_ddp":
        return NONE if resolved.hardware.num_gpus == 1 else NCCL
    return FAKE
