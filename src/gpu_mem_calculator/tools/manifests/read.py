"""Manifests: the commands in the containers of Kubernetes objects and compose files.

A container is read where its command starts a tool that is known, or where it asks for GPUs. Those
of a compose file are its services (the Compose Specification: command, entrypoint, environment,
deploy.resources and gpus).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from ...catalog.machines import label_cards
from ...runfile.text.errors import InputError, quoted
from ..launchers.container import image_release
from ..launchers.launch import read_launch, within
from ..reading.card import NamedCard, all_of, naming_card
from ..reading.command import Command
from ..reading.named_files import NamedFiles
from ..reading.node_memory import NamedMemory, docker_memory, least
from ..reading.reading import Limit, Reading
from ..reading.tools import UnknownToolError, command_format, read_alone
from ..shell.read import main_commands, read_script
from .containers import (
    Container,
    container_words,
    inside,
    is_open,
    objects,
    section,
    shell_script,
    text_list,
    variables,
    whole_number,
)
from .kubernetes import object_containers

LIMIT = "deploy.resources.limits.memory"  # of a compose file; mem_limit is its older name
EVERY = "compose"  # what runs without a profile
MOST_COPIES = 16
# $$, ${NAME}, ${NAME:-default} and $NAME; what a file .env sets is not read.
VARIABLE = re.compile(
    r"\$(?:(\$)|\{([A-Za-z_]\w*)(?::?(?:[?+][^{}]*|-([^{}]*)))?\}|([A-Za-z_]\w*))"
)
MOST_CONTAINERS, MOST_NOTES = 200, 5
NOTHING = (
    "the manifest is not read: no container in it starts a tool that is known, and none asks for"
    " GPUs"
)


def service_containers(document: Mapping[str, Any]) -> Iterator[Container]:
    """The containers of a compose file's services."""
    services = document.get("services")
    if not isinstance(services, Mapping):
        raise InputError(f"services={quoted(services)} must be an object")
    named = dict.fromkeys(one for service in services.values() for one in _profiles(service))
    profiles = (EVERY, *named)
    for name, service in services.items():
        if isinstance(service, Mapping):
            container = _container(f"service {name}", service, profiles)
            yield from (container for _ in range(_copies(service)))


def _profiles(service: Any) -> tuple[str, ...]:
    found = inside(service, "profiles")
    return tuple(map(str, found)) if isinstance(found, list) else ()


def _copies(service: Mapping[str, Any]) -> int:
    """How many containers of a service run on the machine."""
    deploy = service.get("deploy")
    count = deploy.get("replicas") if isinstance(deploy, Mapping) else service.get("scale")
    return min(count, MOST_COPIES) if isinstance(count, int) and count > 1 else 1


def _container(name: str, service: Mapping[str, Any], profiles: tuple[str, ...]) -> Container:
    environment = variables(service.get("environment"), f"{name}: environment")
    environment = {key: _filled(value) for key, value in environment.items()}
    command, front = (
        [_filled(word) for word in text_list(service.get(key), f"{name}: {key}")]
        for key in ("command", "entrypoint")
    )
    image = _filled(str(service.get("image") or ""))
    asked, devices = _gpus(name, service, environment)
    return Container(
        name=name,
        image=image,
        words=container_words(image, front, command),
        environment=environment,
        num_gpus=len(devices) or None,
        given_by="devices" if asked else "",
        card=_placed(service),
        memory=_memory(service),
        slots=(_profiles(service) or profiles) if asked else (),
        devices=devices,
    )


def _memory(service: Mapping[str, Any]) -> NamedMemory | None:
    """The memory that a service may take."""
    keys = {LIMIT: inside(service, *LIMIT.split(".")), "mem_limit": service.get("mem_limit")}
    return least(*(docker_memory(_filled(str(value)), key) for key, value in keys.items()))


def _placed(service: Mapping[str, Any]) -> NamedCard | None:
    """The card of deploy.placement.constraints: `node.labels.gpu == a100`."""
    value = inside(service, "deploy", "placement", "constraints")
    said = [str(one) for one in value] if isinstance(value, list) else []
    pairs = [(one, re.fullmatch(r"node\.labels\.(\S+?) *== *(\S+)", one)) for one in said]
    labelled = [(one, label_cards(found[1], found[2])) for one, found in pairs if found]
    return all_of([NamedCard(name=name, said=one) for one, name in labelled if name is not None])


def _filled(text: str) -> str:
    """A text with the defaults of its variables; one without a default stays as it is."""

    def value(match: re.Match[str]) -> str:
        if match[1]:
            return "$"
        return match[0] if match[3] is None else match[3]

    return VARIABLE.sub(value, text)


def _gpus(
    name: str, service: Mapping[str, Any], environment: Mapping[str, str]
) -> tuple[bool, tuple[str, ...]]:
    """Whether a service has GPUs, and which: those of deploy.resources.reservations.devices, of
    `gpus`, or of NVIDIA's runtime; none are named where it has all of them.
    """
    value = inside(service, "deploy", "resources", "reservations", "devices")
    short = service.get("gpus")  # `all`, or a list of requests
    requests = [one for every in (value, short) if isinstance(every, list) for one in every]
    devices: list[str] = []
    for request in objects(requests):
        ids, count = request.get("device_ids"), request.get("count")
        if isinstance(ids, list):
            devices += [_filled(str(one)) for one in ids]
            continue
        count = "all" if count is None else _filled(str(count)).lower()
        if count != "all" and not is_open(count):
            number = whole_number(count, f"{name}: devices.count")
            devices += map(str, range(number))  # the first ones: moby's countToDevices
    runtime = service.get("runtime") == "nvidia"
    if runtime and not devices:
        named = environment.get("NVIDIA_VISIBLE_DEVICES", "all")
        devices = [] if named == "all" else named.split(",")
    return bool(requests or short or runtime), tuple(devices)


def is_manifest(data: Any) -> bool:
    """Whether data is a Kubernetes object or a compose file."""
    if not isinstance(data, Mapping):
        return False
    kubernetes = isinstance(data.get("apiVersion"), str) and isinstance(data.get("kind"), str)
    services = objects(list(section(data, "services").values()))
    return kubernetes or any(one.keys() & {"image", "build", "command"} for one in services)


def read_manifest(documents: Sequence[Any], files: NamedFiles) -> list[Command]:
    """The commands of a manifest's containers that start a known tool or ask for GPUs.

    Where one is read, it names the other containers: one with GPUs is not modelled.
    """
    found: list[Command] = []
    problems: list[str] = []
    limits: list[Limit] = []
    notes: list[str] = []
    for container in _containers(documents):
        try:
            with naming_card(container.card):
                commands = _commands(container, files)
        except InputError as error:
            sentences = error.problems
        else:
            known = [one for one in commands if _is_known(one)]
            taken = known or [one for one in commands if _may_train(one, container)]
            found += [_with_gpus(one, container, alone=len(taken) == 1) for one in taken]
            sentences = [] if taken else [_unknown(commands[0], container)]
        if sentences and container.has_gpus:
            problems += [f"{container.name}: {sentence}" for sentence in sentences]
            why = f"is not checked, and it takes GPUs ({container.given_by}): {sentences[0]}"
            limits.append(Limit(key=container.name, why=why))
        elif sentences:
            notes.append(f"{container.name} asks for no GPU")
    if not found:
        raise UnknownToolError(problems) if problems else InputError(NOTHING)
    assumed = (*found[0].assumed, *notes[:MOST_NOTES])
    found[0] = replace(found[0], assumed=assumed, limits=(*found[0].limits, *limits))
    return found


def _unknown(command: Command, container: Container) -> str:
    """The sentence for a command that starts no known tool."""
    try:
        with naming_card(container.card):
            raise UnknownToolError(f"{command.words[0]!r} starts no tool that is known")
    except UnknownToolError as error:
        return error.problems[0]


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


def _commands(container: Container, files: NamedFiles) -> list[Command]:
    """The commands of a container, read from its words or from the script in them."""
    if not container.words:
        raise InputError(f"the command is in the image {container.image}, which is not read")
    script = shell_script(container.words)
    if script is None:
        return [read_launch(container.words, files, container.environment)]
    text, arguments = script
    return main_commands(read_script(text, files, arguments, container.environment))


def _with_gpus(command: Command, container: Container, *, alone: bool) -> Command:
    """The command with the card and the GPUs of its container, and of those that belong to the same
    run; and with the release that the tag of its image names. Several commands of one container run
    together where its script says so.
    """
    inner = tuple(f"{slot} {one}" for slot in container.slots for one in command.slots)
    command = replace(
        command,
        release=command.release or image_release(container.image),
        card=container.card or command.card,
        node=least(container.memory, command.node),
        name=container.name if alone else f"{container.name}: {command.name}",
        slots=container.slots if alone else inner,
        devices=within(container.devices, command.devices) or container.devices,
    )
    if container.num_gpus is None:
        return command
    total = container.num_gpus * container.copies
    return replace(command, num_gpus=total, num_nodes=container.copies, given_by=container.given_by)


def _is_known(command: Command) -> bool:
    """Whether a command starts a known tool; a script in Python may be anything."""
    return command_format(command) is not None and not command.program.endswith(".py")


def _may_train(command: Command, container: Container) -> bool:
    """Whether a command is a script in Python that has GPUs."""
    return container.has_gpus and command_format(command) is not None


def read_data(data: Any, files: NamedFiles) -> Reading:
    """What a manifest with one command means."""
    return read_alone(read_manifest([data], files))
