"""Removes launchers from the front of a command, and keeps what they say: srun and mpirun, how many
processes they start; `ray job submit -- COMMAND`; torchrun, and torch.distributed's modules that do
the same (torch 2.13.0 distributed/run.py); and those of the files beside this one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath

from msgspec.structs import replace

from ...runfile.text.errors import InputError
from ..reading.command import Command
from ..reading.named_files import NamedFiles
from ..reading.node_memory import least, slurm_memory
from ..reading.reading import Limit
from . import accelerate, container, deepspeed
from .launcher_options import LauncherOptions, split_options
from .slurm_cards import slurm_card
from .wrappers import without_wrappers

MPIRUN = ("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun")
PROGRAMS = ("torchrun",)
MODULES = ("torch.distributed.run", "torch.distributed.launch", "torch.distributed.launcher")
PYTHON = re.compile(r"(python|pypy)(3(\.\d+)?)?(\.exe)?")
VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
ELLIPSES, NOT_SAID = ("...", "…"), "the options that are left out there are not known"
MOST_LAUNCHERS = 20  # one behind another


def without_srun(command: Command) -> Command:
    """The command that srun starts, with its processes, nodes and card."""
    options = split_options("srun", command.words[1:])
    nodes = options.number("nodes")
    each, gpus = options.number("ntasks_per_node"), _gpus(options)
    count = options.number("ntasks") or (each * nodes if each and nodes else None)
    if gpus and (count is None or (nodes and count <= nodes)):
        # one task for each node, which starts the others
        count = gpus * (nodes or 1)
    given = {f"--{name.replace('_', '-')}": values[-1] for name, values in options.given.items()}
    started = _started(command, options, count, nodes)
    memory = slurm_memory(given, gpus, each)
    return replace(
        started, card=slurm_card(given) or command.card, node=least(memory, command.node)
    )


def _started(
    command: Command, options: LauncherOptions, count: int | None, nodes: int | None
) -> Command:
    """A command behind a launcher that says how many processes and nodes there are, or does not."""
    return replace(
        command,
        words=options.rest,
        num_gpus=count or command.num_gpus,
        num_nodes=nodes or command.num_nodes,
        launcher=command.program,
        given_by=command.program if count else command.given_by,
    )


def _gpus(options: LauncherOptions) -> int | None:
    """GPUs of a node."""
    written = options.last("gpus_per_node", "gres") or ""
    found = re.search(r"(?:^|gpu:)(?:[\w.+-]+:)?(\d+)$", written)
    return int(found[1]) if found else None


def without_mpirun(command: Command) -> Command:
    """The same of mpirun, with the variables that it sets."""
    options = split_options("mpirun", command.words[1:])
    count = options.number("np", "n", "c")
    hosts = [one.partition(":") for one in (options.last("host") or "").split(",") if one]
    each = options.number("npernode", "ppn")
    slots = sum(int(slot) if slot.isdecimal() else 1 for _, _, slot in hosts)
    count = count or (each * len(hosts) if each and hosts else slots) or None
    nodes = len({name for name, _, _ in hosts}) or (-(-count // each) if count and each else None)
    environment = {**command.environment, **options.pairs("x")}
    return replace(_started(command, options, count, nodes), environment=environment)


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


def without_ray(command: Command) -> Command:
    """The command that `ray job submit` starts."""
    if command.words[1:3] != ("job", "submit"):
        asked = " ".join(command.words[:3])
        raise InputError(f"{asked} starts no program; only ray job submit is read")
    return replace(command, words=split_options("ray", command.words[3:]).rest, launcher="ray")


LAUNCHERS: tuple[tuple[tuple[str, ...], tuple[str, ...], Callable[[Command], Command]], ...] = (
    (PROGRAMS, MODULES, without_torchrun),
    (accelerate.PROGRAMS, accelerate.MODULES, accelerate.without_accelerate),
    (deepspeed.PROGRAMS, deepspeed.MODULES, deepspeed.without_deepspeed),
    (("srun",), (), without_srun),
    (MPIRUN, (), without_mpirun),
    (("ray",), (), without_ray),
    (container.PROGRAMS, (), container.without_container),
)


def read_launch(
    words: Sequence[str], files: NamedFiles, environment: Mapping[str, str] | None = None
) -> Command:
    """The program that a command starts, without the launchers in front of it."""
    left_out = tuple(word for word in words if word not in ELLIPSES)
    limits = (Limit(key="...", why=NOT_SAID),) if len(left_out) < len(words) and left_out else ()
    words = left_out or tuple(words)
    command = Command(words=words, files=files, environment=dict(environment or {}), limits=limits)
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
    for programs, modules, unwrap in LAUNCHERS:
        if command.words[0] in modules if command.module else command.program in programs:
            inner = unwrap(command)  # where it has no count, one in front of it may have it
            counted = inner.num_gpus is not None
            return inner if counted else replace(inner, num_gpus=command.num_gpus)
    return command


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
