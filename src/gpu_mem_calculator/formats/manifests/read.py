"""Manifests: the commands in the containers of Kubernetes objects and compose files.

A container is read where its command starts a tool that is known, or where it asks for GPUs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ...core.errors import InputError, quoted
from ..launchers.container import image_version
from ..launchers.launch import read_launch
from ..reading.command import Command
from ..reading.named_files import NamedFiles
from ..reading.reading import Reading
from ..reading.tools import command_format, read_command
from ..shell.read import main_command, read_script
from .compose import service_containers
from .containers import Container, shell_script
from .kubernetes import object_containers

MOST_CONTAINERS, MOST_NOTES = 200, 5
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
    """The commands of a manifest's containers that start a known tool or ask for GPUs.

    Where one is read, a sentence in it names the containers with GPUs that are not.
    """
    found: list[NamedCommand] = []
    problems: list[str] = []
    for container in _containers(documents):
        try:
            command = _command(container, files)
        except InputError as error:
            if container.num_gpus:
                problems += [f"{container.name}: {sentence}" for sentence in error.problems]
            continue
        if container.num_gpus or _is_known(command):
            found.append(NamedCommand(container.name, _with_gpus(command, container)))
    if not found:
        raise InputError(problems or f"the manifest is not read: {NOTHING}")
    notes = tuple(f"not read beside it: {problem}" for problem in problems[:MOST_NOTES])
    first = found[0]
    noted = replace(first.command, assumed=(*first.command.assumed, *notes))
    return [NamedCommand(first.name, noted), *found[1:]]


def _containers(documents: Sequence[Any]) -> Iterator[Container]:
    count = 0
    for document in documents:
        if not is_manifest(document):
            raise InputError(f"{quoted(document)} is no Kubernetes object and no compose file")
        reader = object_containers if "kind" in document else service_containers
        for container in reader(document):
            count += 1
            if count > MOST_CONTAINERS:
                raise InputError(f"it has more than {MOST_CONTAINERS} containers; split the file")
            yield container


def _command(container: Container, files: NamedFiles) -> Command:
    """The command of a container, read from its words or from the script in them."""
    if not container.words:
        raise InputError(f"the command is in the image {container.image}, which is not read")
    script = shell_script(container.words)
    if script is None:
        return read_launch(container.words, files, container.environment)
    text, arguments = script
    return main_command(read_script(text, files, arguments, container.environment))


def _with_gpus(command: Command, container: Container) -> Command:
    """The command with the GPUs of its container, and of those that belong to the same run; and
    with the release that the tag of its image names.
    """
    command = replace(command, version=command.version or image_version(container.image))
    if container.num_gpus is None:
        return command
    total = container.num_gpus * container.copies
    return replace(command, num_gpus=total, num_nodes=container.copies)


def _is_known(command: Command) -> bool:
    """Whether a command starts a known tool; a script in Python may be anything."""
    return command_format(command) is not None and not command.program.endswith(".py")


def read_data(data: Any, files: NamedFiles) -> Reading:
    """What a manifest with one command means."""
    commands = read_manifest([data], files)
    if len(commands) > 1:
        names = ", ".join(one.name for one in commands)
        raise InputError(f"it has {len(commands)} commands ({names}); check them one by one")
    return read_command(commands[0].command)
