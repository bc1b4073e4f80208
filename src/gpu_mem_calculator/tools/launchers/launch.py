"""Removes launchers from the front of a command, and keeps what they say.

`ray job submit -- COMMAND`.

torchrun, and torch.distributed's modules that do the same (torch 2.13.0 distributed/run.py).

srun and mpirun: how many processes they start.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath

from msgspec import Struct
from msgspec.structs import replace

from ...runfile.text.errors import InputError
from ..reading.card import NamedCard
from ..reading.command import Command
from ..reading.named_files import NamedFiles
from . import accelerate, container, deepspeed
from .launcher_options import LauncherOptions, split_options
from .slurm_cards import slurm_card
from .wrappers import without_wrappers

MPIRUN = ("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun")


class Processes(Struct, frozen=True):
    """Processes that a launcher starts, its nodes and their card; None where it does not say."""

    count: int | None = None
    nodes: int | None = None
    card: NamedCard | None = None


def srun(words: list[str]) -> tuple[Processes, dict[str, str], list[str]]:
    """What srun says, variables that it sets, and the command that it starts."""
    options = split_options("srun", words[1:])
    nodes = options.number("nodes")
    each, gpus = options.number("ntasks_per_node"), _gpus(options)
    count = options.number("ntasks") or (each * nodes if each and nodes else None)
    if gpus and (count is None or (nodes and count <= nodes)):
        # one task for each node, which starts the others
        count = gpus * (nodes or 1)
    given = {f"--{name.replace('_', '-')}": values[-1] for name, values in options.given.items()}
    return Processes(count, nodes, slurm_card(given)), {}, list(options.rest)


def _gpus(options: LauncherOptions) -> int | None:
    """GPUs of a node."""
    written = options.last("gpus_per_node", "gres") or ""
    found = re.search(r"(?:^|gpu:)(?:[\w.+-]+:)?(\d+)$", written)
    return int(found[1]) if found else None


def mpirun(words: list[str]) -> tuple[Processes, dict[str, str], list[str]]:
    """The same of mpirun."""
    options = split_options("mpirun", words[1:])
    count = options.number("np", "n", "c")
    hosts = [one for one in (options.last("host") or "").split(",") if one]
    each = options.number("npernode", "ppn")
    slots = [
        int(slot) if slot.isdecimal() else 1 for _, _, slot in (h.partition(":") for h in hosts)
    ]
    count = count or (each * len(hosts) if each and hosts else sum(slots)) or None
    nodes = len({one.partition(":")[0] for one in hosts}) or (
        -(-count // each) if count and each else None
    )
    variables = dict(one.split("=", 1) for one in options.given.get("x", ()) if "=" in one)
    return Processes(count, nodes), variables, list(options.rest)


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


def without_ray(words: list[str]) -> list[str]:
    """The command that Ray starts."""
    if words[1:3] != ["job", "submit"]:
        raise InputError(f"{' '.join(words[:3])} starts no program; only ray job submit is read")
    return list(split_options("ray", words[3:]).rest)


PYTHON = re.compile(r"(python|pypy)(3(\.\d+)?)?(\.exe)?")
VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
MOST_LAUNCHERS = 20  # one behind another
LAUNCHERS: tuple[tuple[tuple[str, ...], tuple[str, ...], Callable[[Command], Command]], ...] = (
    (PROGRAMS, MODULES, without_torchrun),
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
