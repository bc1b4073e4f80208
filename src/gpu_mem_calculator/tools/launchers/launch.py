"""Removes launchers from the front of a command, and keeps what they say."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath

from msgspec.structs import replace

from ...runfile.text.errors import InputError
from ..reading.command import Command
from ..reading.named_files import NamedFiles
from . import accelerate, container, deepspeed, torchrun
from .cluster import MPIRUN, mpirun, srun
from .ray import without_ray
from .wrappers import without_wrappers

PYTHON = re.compile(r"(python|pypy)(3(\.\d+)?)?(\.exe)?")
VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
MOST_LAUNCHERS = 20  # one behind another
LAUNCHERS: tuple[tuple[tuple[str, ...], tuple[str, ...], Callable[[Command], Command]], ...] = (
    (torchrun.PROGRAMS, torchrun.MODULES, torchrun.without_torchrun),
    (accelerate.PROGRAMS, accelerate.MODULES, accelerate.without_accelerate),
    (deepspeed.PROGRAMS, deepspeed.MODULES, deepspeed.without_deepspeed),
)


def read_launch(
    words: Sequence[str], files: NamedFiles, environment: Mapping[str, str] | None = None
) -> Command:
    """The program that a command starts, without the launchers in front of it."""
    command = Command(words=tuple(words), files=files, environment=dict(environment or {}))
    for _ in range(MOST_LAUNCHERS):
        shorter = _without_first(command)
        if shorter == command:
            break
        command = shorter
    visible = visible_devices(command.environment)
    if visible:
        command = replace(command, devices=within(command.devices, visible))
    if command.num_gpus is None and visible:
        command = replace(command, num_gpus=len(visible))
    return command


def visible_devices(environment: Mapping[str, str]) -> tuple[str, ...]:
    """The GPUs that CUDA's or ROCm's variable leaves visible; empty where neither is set."""
    written = next((environment[name] for name in VISIBLE if environment.get(name)), "")
    return tuple(one.strip() for one in written.split(",") if one.strip())


def within(outer: Sequence[str], inner: Sequence[str]) -> tuple[str, ...]:
    """The names of devices that a process numbers inside a container, which has the outer ones."""

    def name(one: str) -> str:
        return outer[int(one)] if one.isdecimal() and int(one) < len(outer) else one

    return tuple(name(one) for one in inner)


def _without_first(command: Command) -> Command:
    """The command without what stands first in it, where that is a launcher or a wrapper."""
    if not command.words:
        raise InputError("there is no command to check; write it after gpu-mem-calc check")
    if not command.module:
        variables, rest = without_wrappers(command.words)
        if len(rest) < len(command.words):
            environment = {**command.environment, **variables}
            return replace(command, words=tuple(rest), environment=environment)
        if PYTHON.fullmatch(PurePath(command.program).name):
            return _without_python(command)
        if command.program in ("srun", *MPIRUN, "ray", *container.PROGRAMS):
            return _without_starter(command)
    for programs, modules, unwrap in LAUNCHERS:
        if command.words[0] in modules if command.module else command.program in programs:
            return _with_counts(unwrap(command), command)
    return command


def _with_counts(inner: Command, outer: Command) -> Command:
    """The counts of a launcher; those of one in front of it where it has none."""
    if inner.num_gpus is None:
        return replace(inner, num_gpus=outer.num_gpus)
    return inner


def _without_starter(command: Command) -> Command:
    """The command without srun, mpirun, ray or docker run."""
    words = list(command.words)
    if command.program == "ray":
        return replace(command, words=tuple(without_ray(words)), launcher="ray")
    if command.program in container.PROGRAMS:
        return _without_container(command, words)
    start = srun if command.program == "srun" else mpirun
    processes, variables, rest = start(words)
    return replace(
        command,
        words=tuple(rest),
        environment={**command.environment, **variables},
        num_gpus=processes.count or command.num_gpus,
        num_nodes=processes.nodes or command.num_nodes,
        launcher=command.program,
        card=processes.card or command.card,
        given_by=command.program if processes.count else command.given_by,
    )


def _without_container(command: Command, words: list[str]) -> Command:
    found = container.without_container(words)
    return replace(
        command,
        words=found.words,
        environment={**command.environment, **found.variables},
        num_gpus=found.num_gpus or command.num_gpus,
        launcher="",
        version=found.version,
        devices=found.devices or command.devices,
        detached=found.detached,
        given_by=f"{command.program} --gpus" if found.devices else command.given_by,
    )


def _without_python(command: Command) -> Command:
    rest = list(command.words[1:])
    while rest and rest[0].startswith("-") and rest[0] != "-m":
        if rest[0] in ("-c", "-"):
            raise InputError("python -c has no script that can be read; write it to a file")
        del rest[: 2 if rest[0] in ("-X", "-W") else 1]
    module = rest[:1] == ["-m"]
    rest = rest[1:] if module else rest
    if not rest:
        raise InputError("python needs a script or -m MODULE after it")
    return replace(command, words=tuple(rest), module=module)
