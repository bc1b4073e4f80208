"""The containers of a Pod: their words, variables and GPUs, and the card of its node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from ..reading.card import slice_of
from .containers import (
    Container,
    claims,
    container_words,
    gpus_of,
    is_shared,
    referenced,
    text_list,
    variables,
)
from .node_cards import pod_card, resource_slice


def is_mapping(value: Any) -> bool:
    """Whether a part of a manifest is an object."""
    return isinstance(value, Mapping)


def in_pod(found: list[Container], pod: Mapping[str, Any], slot: str) -> Iterator[Container]:
    """The containers of a Pod with its card, and with the GPUs that each has for itself."""
    card, next_gpu = pod_card(pod), 0
    for one in found:
        devices = one.devices
        if one.num_gpus and not devices:
            devices = tuple(str(next_gpu + i) for i in range(one.num_gpus))
            next_gpu += one.num_gpus
        own = slice_of(one.profile, card) if one.profile else card
        yield replace(one, card=own, slots=(slot,), devices=devices)


def init_containers(
    name: str, pod: Mapping[str, Any], copies: int
) -> tuple[list[Container], list[Container]]:
    """The containers that end before the others start, and those that go on beside them."""
    listed = pod.get("initContainers")
    data = [one for one in listed if is_mapping(one)] if isinstance(listed, list) else []
    found = [(pod_container(name, one, copies), one) for one in data]
    kept = [(one, data.get("restartPolicy") == "Always") for one, data in found if one.has_gpus]
    return [one for one, stays in kept if not stays], [one for one, stays in kept if stays]


def with_containers(value: Any) -> Iterator[Mapping[str, Any]]:
    """Every part of an object that has containers, at any depth."""
    if isinstance(value, Mapping):
        if "containers" in value:
            yield value
            return
        for inner in value.values():
            yield from with_containers(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from with_containers(inner)


def pod_container(
    name: str, data: Mapping[str, Any], copies: int, more: Mapping[str, str] | None = None
) -> Container:
    """A container of a Pod; `more` are variables that its controller sets."""
    where = f"{name}, container {data.get('name', '')}".rstrip()
    environment = {**(more or {}), **variables(data.get("env"), f"{where}: env")}
    command = text_list(data.get("command"), f"{where}: command")
    args = text_list(data.get("args"), f"{where}: args")
    image = str(data.get("image") or "")
    known = [[referenced(word, environment) for word in words] for words in (command, args)]
    resources = data.get("resources")
    gpus, given_by = gpus_of(resources, where)
    return Container(
        name=where,
        image=image,
        words=container_words(image, known[0], known[1]),
        environment=environment,
        num_gpus=gpus,
        given_by=given_by,
        copies=copies,
        profile=resource_slice(resources),
        devices=claims(resources) or (("0",) if is_shared(resources) else ()),
    )
