"""docker run, apptainer exec: the command in the container, by the image where it is left out."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

from msgspec import Struct

from ...runfile.text.errors import InputError
from ..translation.arguments import tables
from .launcher_options import split_options

APPTAINER = ("apptainer", "singularity")
PROGRAMS = ("docker", "podman", "nerdctl", *APPTAINER)
# Images by their name without registry and tag, and the program that their entrypoint starts.
ENTRYPOINTS: Mapping[str, tuple[str, ...]] = tables(__file__)["entrypoints"]


def entrypoint(image: str) -> tuple[str, ...]:
    """The program that an image starts, in front of the words of its command; empty where it is
    not known, or where the image starts any command.
    """
    name = image.partition("@")[0]
    name = name[: name.rindex(":")] if ":" in name.rpartition("/")[2] else name
    first, slash, rest = name.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        name = rest
    found = (program for pattern, program in ENTRYPOINTS.items() if re.fullmatch(pattern, name))
    return tuple(next(found, ()))


def image_version(image: str) -> str:
    """The release that the tag of vLLM's own image names: 0.10.0 of vllm/vllm-openai:v0.10.0."""
    found = re.search(r":v?(\d+\.\d+\.\d+)(?![\d.])[^/:]*$", image.partition("@")[0])
    return found[1] if found and entrypoint(image)[:1] == ("vllm",) else ""


class Contained(Struct, frozen=True):
    """What `docker run` starts.

    - `words`: the command in the container; `variables`: those that it sets for it
    - `version`: the release in the image's tag
    - `num_gpus`: None for all; `devices`: their names, empty where all are meant
    - `detached`: whether it runs in the background
    """

    words: tuple[str, ...]
    variables: Mapping[str, str]
    version: str
    num_gpus: int | None
    devices: tuple[str, ...]
    detached: bool


def without_container(words: list[str]) -> Contained:
    """The command that `docker run` starts, its variables and GPUs."""
    after, name = words[1:], words[0].rpartition("/")[2]
    syntax = "apptainer" if name in APPTAINER else "docker"
    starts = ("run", "exec") if name in APPTAINER else ("run",)
    if after[:1] == ["container"]:
        after = after[1:]
    if not after or after[0] not in starts:
        raise InputError(f"{' '.join(words[:2])} starts no program that is read; use {name} run")
    options = split_options(syntax, after[1:])
    if not options.rest:
        raise InputError(f"{name} run needs an image; name it behind the options")
    image, *rest = options.rest
    asked = options.last("entrypoint")
    front = shlex.split(asked) if asked else list(entrypoint(image))
    if front[:2] == ["vllm", "serve"] and rest[:2] == ["vllm", "serve"]:
        front = []
    if not [*front, *rest]:
        raise InputError(
            f"{name} run {image}: which program the image starts is not known; name it"
        )
    variables = dict(one.split("=", 1) for one in options.given.get("env", ()) if "=" in one)
    devices = gpu_names(options.last("gpus") or "")
    return Contained(
        words=(*front, *rest),
        variables=variables,
        version=image_version(image),
        num_gpus=len(devices) or None,
        devices=devices,
        detached="detach" in options.given,
    )


def gpu_names(written: str) -> tuple[str, ...]:
    """The GPUs of `2`, `device=0,1` or `all`: a number means the first ones (moby
    daemon/nvidia_linux.go, countToDevices); empty for all.
    """
    text = written.strip("'\"")
    if text.isdecimal() and len(text) < 4:
        return tuple(map(str, range(int(text))))
    if text.startswith("device="):
        return tuple(text.removeprefix("device=").split(","))
    return ()
