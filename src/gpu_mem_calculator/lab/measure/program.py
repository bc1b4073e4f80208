"""The program of a run file: training by its engine, or inference."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from ...runfile.find_model.model_source import find_model
from ...runfile.resolve.resolve import resolve
from ...runfile.resolve.resolved_run import ResolvedRun
from ...runfile.text.errors import InputError
from ...tools.read import read
from ...training.optimizers import OPTIMIZERS
from ..jobs.function import UserFunction, run_without_model
from ..jobs.job import FAKE, NCCL, NONE, Job, World, run
from ..jobs.model import NO_PROGRAM
from ..jobs.phases import inference_phases, training_phases


class MeasuredProgram(Struct, frozen=True, kw_only=True):
    """A program that can be measured.

    - `start`: runs it in a world
    - `group`: its group in a file of measured runs
    - `num_ranks`: the ranks of the whole job
    - `process_group`: how a single process plays one rank
    - `alloc_conf`: PYTORCH_ALLOC_CONF of the run file
    - `phases`: the names of its phases in order, given the number of steps
    """

    start: Callable[[World], None]
    group: str
    num_ranks: int = 1
    process_group: str = NONE
    alloc_conf: str | None = None
    phases: Callable[[int], tuple[str, ...]] = lambda steps: ()


def program(
    config: Mapping[str, Any], function: str | None = None, values: Mapping[str, Any] | None = None
) -> MeasuredProgram:
    """The program of a run file; every problem of the file is raised at once.

    A function makes the model and the batch instead of the file. It is loaded when the job starts,
    so that the process that forks does not import the user's module.
    """
    if config.get("inference") is not None:
        if function is not None:
            raise InputError("inference runs the run file's model; leave --function out")
        return _inference(config)
    file = read(config if function is None else run_without_model(config)[0]).file
    resolved = resolve(file)

    def start(world: World) -> None:
        if file.training.cublas_workspace_config:  # read by torch at the first matmul
            os.environ["CUBLAS_WORKSPACE_CONFIG"] = file.training.cublas_workspace_config
        build = None if function is None else _user_function(resolved, function, values, world)
        run(Job(file=file, resolved=resolved, world=world, build=build))

    return MeasuredProgram(
        start=start,
        group=group_name(resolved),
        num_ranks=resolved.hardware.num_gpus,
        process_group=_process_group(resolved),
        alloc_conf=file.training.pytorch_alloc_conf,
        phases=lambda steps: training_phases(resolved, steps, program=file.program is not None),
    )


def _user_function(
    resolved: ResolvedRun, function: str, values: Mapping[str, Any] | None, world: World
) -> UserFunction:
    """The user's function; its model is made on the GPU, or for FSDP on the host, then sharded."""
    sharded = resolved.engine.name == "fsdp"
    return UserFunction(
        function,
        resolved.run.precision,
        values,
        device=world.device,
        made_on="cpu" if sharded else None,
    )


def _inference(config: Mapping[str, Any]) -> MeasuredProgram:
    from ..jobs.inference import infer, settings

    section = config["inference"]
    if not isinstance(section, Mapping):
        raise InputError(f"inference={section!r} must be an object")
    new_tokens = settings(section)["new_tokens"]
    file = read({k: v for k, v in config.items() if k != "inference"}).file
    model = find_model(file.model).config
    if model is None:
        raise InputError(NO_PROGRAM)
    return MeasuredProgram(
        start=lambda world: infer(section, model, world),
        group="inference",
        phases=lambda steps: inference_phases(new_tokens),
    )


def group_name(resolved: ResolvedRun) -> str:
    """The group of a training run in a file of measured runs."""
    run, name = resolved.run, resolved.engine.name
    if run.adapter is not None or run.quantization or OPTIMIZERS[run.optimizer].block:
        return "peft"
    if name == "pytorch_ddp":
        return "single" if resolved.hardware.num_gpus == 1 else "ddp"
    return "megatron" if name.startswith("megatron") else name


def _process_group(resolved: ResolvedRun) -> str:
    """How one process plays one rank.

    DDP's buckets do not depend on the number of ranks, so a real communicator of one rank is
    enough; an engine that shards needs the real number, which the fake group has.
    """
    if resolved.engine.name == "pytorch_ddp":
        return NONE if resolved.hardware.num_gpus == 1 else NCCL
    return FAKE
