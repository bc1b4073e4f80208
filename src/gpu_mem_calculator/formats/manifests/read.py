"""Manifests: the commands in the containers of Kubernetes objects and compose files.

A container is read where its command starts a tool that is known, or where it asks for GPUs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ...core.errors import InputError, quoted
from ..launchers.launch import read_launch
from ..reading.command import Command
from ..reading.named_files import NamedFiles
from ..reading.reading import Reading
from ..reading.tools import command_format, read_command
from .compose import service_containers
from .containers import Container
from .kubernetes import object_containers

MOST_CONTAINERS = 200
NOTHING = "no container in it starts a tool that is known, and none asks for GPUs"


class NamedCommand(Struct, frozen=True):
    """A command and the container that runs it."""

    name: str
    command: Command


def is_manifest(data: Any) -> bool:
    """Whether data is a Kubernetes object or a compose file."""
    if not isinstance(data, Mapping):
        return False
    kubernetes = isinstance(data.get("apiVersion"), str) and isinstance(data.get("kind"), str)
    services = data.get("services")
    compose = isinstance(services, Mapping) and any(
        isinstance(one, Mapping) and one.keys() & {"image", "build", "command"}
        for one in services.values()
    )
    return kubernetes or compose


def read_manifest(documents: Sequence[Any], files: NamedFiles) -> list[NamedCommand]:
    """The commands of all containers in a manifest's documents that use GPUs."""
    found: list[NamedCommand] = []
    seen = 0
    for document in documents:
        if not is_manifest(document):
            text = quoted(document)
            raise InputError(f"{text} is no Kubernetes object and no compose file")
        is_object = "kind" in document
        for container in object_containers(document) if is_object else service_containers(document):
            seen += 1
            if seen > MOST_CONTAINERS:
                raise InputError(f"it has more than {MOST_CONTAINERS} containers; split the file")
            found += _commands(container, files)
    if not found:
        raise InputError(f"the manifest is not read: {NOTHING}")
    return found


def _commands(container: Container, files: NamedFiles) -> Iterator[NamedCommand]:
    """The commands of a container that start a known tool; of one with GPUs, at least one."""
    launched = []
    problem = InputError(f"{container.name}: the command is in its image, {container.image}")
    for words in container.commands:
        try:
            launched.append(read_launch(words, files, container.environment))
        except InputError as error:
            problem = InputError(f"{container.name}: {error}")
    known = [one for one in launched if _is_known(one, uses_gpus=bool(container.num_gpus))]
    if not known and container.num_gpus:
        if not launched:
            raise problem
        known = launched[-1:]
    for command in known:
        gpus = container.num_gpus
        if gpus is not None:
            gpus *= container.copies
            command = replace(command, num_gpus=gpus, num_nodes=container.copies)
        yield NamedCommand(container.name, command)


def _is_known(command: Command, *, uses_gpus: bool) -> bool:
    """Whether a command starts a known tool; a script without GPUs may be anything."""
    found = command_format(command)
    return found is not None and (uses_gpus or not command.program.endswith(".py"))


def read_data(data: Any, files: NamedFiles) -> Reading:
    """What a manifest with one command means."""
    commands = read_manifest([data], files)
    if len(commands) > 1:
        names = ", ".join(one.name for one in commands)
        raise InputError(f"it has {len(commands)} commands ({names}); check them one by one")
    return read_command(commands[0].command)
