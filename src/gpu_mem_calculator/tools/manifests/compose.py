"""The containers in a compose file: its services.

The Compose Specification: command, entrypoint, environment, deploy.resources and gpus.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ...catalog.machines import label_cards
from ...runfile.text.errors import InputError, quoted
from ..reading.card import NamedCard, all_of
from .containers import Container, container_words, is_open, text_list, variables, whole_number

EVERY = "compose"  # what runs without a profile
MOST_COPIES = 16
# $$, ${NAME}, ${NAME:-default} and $NAME; what a file .env sets is not read.
VARIABLE = re.compile(
    r"\$(?:(\$)|\{([A-Za-z_]\w*)(?::?(?:[?+][^{}]*|-([^{}]*)))?\}|([A-Za-z_]\w*))"
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
    found = service.get("profiles") if isinstance(service, Mapping) else None
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
        slots=(_profiles(service) or profiles) if asked else (),
        devices=devices,
    )


def _placed(service: Mapping[str, Any]) -> NamedCard | None:
    """The card of deploy.placement.constraints: `node.labels.gpu == a100`."""
    value: Any = service.get("deploy")
    for key in ("placement", "constraints"):
        value = value.get(key) if isinstance(value, Mapping) else None
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
    value: Any = service.get("deploy")
    for key in ("resources", "reservations", "devices"):
        value = value.get(key) if isinstance(value, Mapping) else None
    short = service.get("gpus")
    requests = [*(value if isinstance(value, list) else ()), *_short_form(short)]
    devices: list[str] = []
    for request in requests:
        if not isinstance(request, Mapping):
            continue
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


def _short_form(gpus: Any) -> list[Any]:
    """`gpus: all`, or a list of requests."""
    return gpus if isinstance(gpus, list) else []
