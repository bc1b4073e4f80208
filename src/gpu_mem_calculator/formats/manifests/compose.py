"""The containers in a compose file: its services.

The Compose Specification: command, entrypoint, environment, deploy.resources and gpus.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ...core.errors import InputError, quoted
from .containers import Container, container_words, text_list, variables, whole_number

# $$, ${NAME}, ${NAME:-default} and $NAME; what a file .env sets is not read.
VARIABLE = re.compile(r"\$(?:(\$)|\{([A-Za-z_]\w*)(?::?[-?+]([^{}]*))?\}|([A-Za-z_]\w*))")


def service_containers(document: Mapping[str, Any]) -> Iterator[Container]:
    """The containers of a compose file's services."""
    services = document.get("services")
    if not isinstance(services, Mapping):
        raise InputError(f"services={quoted(services)} must be an object")
    for name, service in services.items():
        if isinstance(service, Mapping):
            yield _container(f"service {name}", service)


def _container(name: str, service: Mapping[str, Any]) -> Container:
    environment = variables(service.get("environment"), f"{name}: environment")
    environment = {key: _filled(value) for key, value in environment.items()}
    command, front = (
        [_filled(word) for word in text_list(service.get(key), f"{name}: {key}")]
        for key in ("command", "entrypoint")
    )
    image = _filled(str(service.get("image") or ""))
    return Container(
        name=name,
        image=image,
        words=container_words(image, front, command),
        environment=environment,
        num_gpus=_gpus(name, service),
    )


def _filled(text: str) -> str:
    """A text with the defaults of its variables; one without a default stays as it is."""

    def value(match: re.Match[str]) -> str:
        if match[1]:
            return "$"
        return match[0] if match[3] is None else match[3]

    return VARIABLE.sub(value, text)


def _gpus(name: str, service: Mapping[str, Any]) -> int | None:
    """The GPUs of deploy.resources.reservations.devices, or of `gpus`; None for all of them."""
    value: Any = service.get("deploy")
    for key in ("resources", "reservations", "devices"):
        value = value.get(key) if isinstance(value, Mapping) else None
    requests = [*(value if isinstance(value, list) else ()), *_short_form(service.get("gpus"))]
    total = 0
    for request in requests:
        if not isinstance(request, Mapping):
            continue
        ids, count = request.get("device_ids"), request.get("count")
        if isinstance(ids, list):
            total += len(ids)
        elif count is not None and str(count).lower() != "all":
            total += whole_number(count, f"{name}: devices.count")
    return total or None


def _short_form(gpus: Any) -> list[Any]:
    """`gpus: all`, or a list of requests."""
    return gpus if isinstance(gpus, list) else []
