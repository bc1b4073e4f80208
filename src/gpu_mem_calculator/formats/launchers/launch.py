"""Removes launchers from the front of a command, and keeps what they say."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath

from msgspec.structs import replace

from ...core.errors import InputError
from ..reading.command import Command
from ..reading.named_files import NamedFiles
from . import accelerate, container, deepspeed, torchrun
from .cluster import MPIRUN, mpirun, srun
from .ray import without_ray
from .wrappers import without_wrappers

PYTHON = re.compile(r"(python|pypy)(3(\.\d+)?)?(\.exe)?")
VISIBLE = "CUDA_VISIBLE_DEVICES"
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
    visible = command.environment.get(VISIBLE, "").split(",")
    if command.num_gpus is None and any(one.strip() for one in visible):
        command = replace(command, num_gpus=len([one for one in visible if one.strip()]))
    return command


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
    words, version = list(command.words), command.version
    if command.program == "ray":
        return replace(command, words=tuple(without_ray(words)), launcher="ray")
    if command.program in container.PROGRAMS:
        gpus, variables, version, rest = container.without_container(words)
        nodes = command.num_nodes
    else:
        start = srun if command.program == "srun" else mpirun
        processes, variables, rest = start(words)
        gpus, nodes = processes.count, processes.nodes or command.num_nodes
    return replace(
        command,
        words=tuple(rest),
        environment={**command.environment, **variables},
        num_gpus=gpus or command.num_gpus,
        num_nodes=nodes,
        launcher=command.program if command.program not in container.PROGRAMS else "",
        version=version,
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
