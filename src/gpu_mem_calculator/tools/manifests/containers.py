"""A container of a manifest: its words, variables and GPUs."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from ...runfile.text.errors import InputError, quoted
from ..launchers.container import entrypoint
from ..reading.card import NamedCard
from ..reading.node_memory import NamedMemory, kubernetes_memory
from ..translation.arguments import tables

# Resources that are GPUs, by the names that device plugins give them.
GPU = re.compile("|".join(tables(__file__)["gpus"]))
SHARED = "nvidia.com/gpu.shared"  # a share of a GPU in time: its memory is not divided
# Images of other registries, by a part of their name, and the program that they start.
COPIES = {"text-generation-inference": ("text-generation-launcher",)}
REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_]\w*)\)")  # of Kubernetes
SHELLS = ("sh", "bash", "ash", "dash", "zsh")
MOST_CHARACTERS = 2**18  # of a text of words


class Container(Struct, frozen=True, kw_only=True):
    """What a container starts.

    - `name`: of the object and of the container, for sentences
    - `words`: what it starts; a script is one of them
    - `num_gpus`: of this container; None where the manifest says nothing of GPUs
    - `given_by`: where they stand, also where their number is open; empty where it has none
    - `copies`: containers that belong to the same run, each on a node of its own
    - `card`: of its node, or its slice; None where the manifest says nothing of it
    - `memory`: its limit; None where the manifest sets none
    - `profile`: of the MIG slice that it asks for; empty where it asks for a whole GPU
    - `slots`: a Pod, or the profiles of a compose file: what runs in one slot runs together
    - `devices`: the GPUs of a slot that it uses; empty where it uses the first ones
    """

    name: str
    image: str = ""
    words: tuple[str, ...] = ()
    environment: Mapping[str, str] = {}
    num_gpus: int | None = None
    given_by: str = ""
    copies: int = 1
    card: NamedCard | None = None
    memory: NamedMemory | None = None
    profile: str = ""
    slots: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()

    @property
    def has_gpus(self) -> bool:
        """Whether it asks for GPUs."""
        return bool(self.given_by or self.devices)


def inside(value: Any, *keys: str) -> Any:
    """What objects in objects have under the keys; None where one of them is missing."""
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def section(value: Any, *keys: str) -> Mapping[str, Any]:
    """The same where it is an object, else an empty one."""
    found = inside(value, *keys)
    return found if isinstance(found, Mapping) else {}


def objects(value: Any) -> list[Mapping[str, Any]]:
    """The objects of a list; none where it is no list."""
    every = value if isinstance(value, list) else ()
    return [one for one in every if isinstance(one, Mapping)]


def text_list(value: Any, where: str) -> list[str]:
    """A list of words; a text is split as a shell splits it."""
    if value is None:
        return []
    if isinstance(value, str):
        return split_words(value, where)
    if isinstance(value, Sequence) and not any(isinstance(one, list | Mapping) for one in value):
        return [_word(one) for one in value]
    raise InputError(f"{where}={quoted(value)} must be a list of words")


def split_words(text: str, where: str) -> list[str]:
    """The words of a text in a shell's rules for quotes."""
    try:
        return shlex.split(text[:MOST_CHARACTERS])
    except ValueError as error:
        raise InputError(f"{where}: {str(error).lower()}; close the quotes") from None


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def variables(entries: Any, where: str) -> dict[str, str]:
    """The variables of `env`: names and values, a mapping, or NAME=VALUE; secrets are left out."""
    if entries is None:
        return {}
    if isinstance(entries, Mapping):
        return {str(name): _word(value) for name, value in entries.items() if value is not None}
    if not isinstance(entries, Sequence) or isinstance(entries, str):
        raise InputError(f"{where}={quoted(entries)} must be a list of names and values")
    found: dict[str, str] = {}
    for entry in entries:
        if isinstance(entry, Mapping) and entry.get("value") is not None:
            found[str(entry.get("name"))] = _word(entry["value"])
        elif isinstance(entry, str) and "=" in entry:
            name, _, value = entry.partition("=")
            found[name] = value
    return found


def referenced(word: str, environment: Mapping[str, str]) -> str:
    """A word with `$(NAME)` replaced by the variable, as Kubernetes does."""

    def value(match: re.Match[str]) -> str:
        return "$" if match[0] == "$$" else environment.get(match[1], match[0])

    return REFERENCE.sub(value, word)


def gpus_of(resources: Any, where: str) -> tuple[int | None, str]:
    """The GPUs of a container's limits or requests, and the resource that they stand in."""
    for part in ("limits", "requests"):
        every = section(resources, part)
        counts = {str(name): one for name, one in every.items() if GPU.fullmatch(str(name))}
        said = ", ".join(f"{name}: {one}" for name, one in counts.items())
        if any(map(is_open, counts.values())):
            return None, said
        if counts:
            found = [whole_number(one, f"{where}.resources.{part}") for one in counts.values()]
            return sum(found), said
    return None, ""


def memory_limit(resources: Any) -> NamedMemory | None:
    """The memory that a container may take; what it requests is no limit."""
    return kubernetes_memory(inside(resources, "limits", "memory"), "resources.limits.memory")


def is_shared(resources: Any) -> bool:
    """Whether a container asks for a share of a GPU in time."""
    parts = resources.values() if isinstance(resources, Mapping) else ()
    return any(isinstance(part, Mapping) and SHARED in part for part in parts)


def claims(resources: Any) -> tuple[str, ...]:
    """The devices of a Pod that a container claims by name (dynamic resource allocation)."""
    return tuple(f"claim {one.get('name')}" for one in objects(inside(resources, "claims")))


def is_open(value: Any) -> bool:
    """Whether a count is filled in elsewhere: `$GPUS`, `{{ .Values.gpus }}`, `<GPUS>`."""
    return isinstance(value, str) and re.search(r"[$<{]", value) is not None


def whole_number(value: Any, where: str) -> int:
    """A count, as a number or as text."""
    if isinstance(value, bool) or not str(value).strip('"').isdecimal() or len(str(value)) > 6:
        raise InputError(f"{where}: {quoted(value)} must be a whole number of GPUs")
    return int(str(value).strip('"'))


def container_words(image: str, command: Sequence[str], args: Sequence[str]) -> tuple[str, ...]:
    """The words that a container starts: its command, or the image's own, and the arguments."""
    front = () if command else image_program(image)
    if front and tuple(args[: len(front)]) == front:  # written again
        front = ()
    return (*front, *command, *args)


def image_program(image: str) -> tuple[str, ...]:
    """The program that an image starts; empty where it is not known, or where it starts any."""
    copies = (program for part, program in COPIES.items() if part in image)
    return entrypoint(image) or next(copies, ())


def shell_script(words: Sequence[str]) -> tuple[str, list[str]] | None:
    """The text behind `bash -c` and its arguments; None where no shell is started."""
    if not words or words[0].rpartition("/")[2] not in SHELLS:
        return None
    for index, word in enumerate(words[1:], start=1):
        if re.fullmatch(r"-[a-z]*c", word):
            rest = list(words[index + 1 :])
            return (rest[0], rest[2:]) if rest else None
        if not word.startswith("-"):
            return None
    return None
