"""docker run, apptainer exec: the command in the container, by the image where it is left out."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

from msgspec.structs import replace

from ...runfile.text.errors import InputError
from ..reading.command import Command
from ..reading.node_memory import docker_memory, least
from ..releases.pins import image_releases
from ..releases.release import Release
from ..translation.arguments import tables
from .launcher_options import split_options

APPTAINER = ("apptainer", "singularity")
PROGRAMS = ("docker", "podman", "nerdctl", *APPTAINER)
# Images by the end of their name without registry and tag, since registries mirror one another, and
# the program that their entrypoint starts.
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
    pairs = ENTRYPOINTS.items()
    found = (program for own, program in pairs if re.fullmatch(f"(?:.*/)?(?:{own})", name))
    return tuple(next(found, ()))


def image_release(image: str) -> Release | None:
    """The release that the tag of a tool's own image names: 0.10.0 of vllm/vllm-openai:v0.10.0."""
    return next(image_releases(image), None)


def without_container(command: Command) -> Command:
    """The command that `docker run` starts, with the variables, GPUs and release that it says."""
    after, name = list(command.words[1:]), command.program
    starts = ("run", "exec") if name in APPTAINER else ("run",)
    if after[:1] == ["container"]:
        after = after[1:]
    if not after or after[0] not in starts:
        asked = " ".join(command.words[:2])
        raise InputError(f"{asked} starts no program that is read; use {name} run")
    options = split_options("apptainer" if name in APPTAINER else "docker", after[1:])
    if not options.rest:
        raise InputError(f"{name} run needs an image; name it behind the options")
    image, *rest = options.rest
    asked = options.last("entrypoint") or ""
    front = shlex.split(asked) or list(entrypoint(image))
    if front[:2] == ["vllm", "serve"] and rest[:2] == ["vllm", "serve"]:
        front = []
    if not [*front, *rest]:
        why = "which program the image starts is not known; name it"
        raise InputError(f"{name} run {image}: {why}")
    devices = gpu_names(options.last("gpus") or "")
    memory = docker_memory(options.last("memory") or "", "--memory")
    return replace(
        command,
        words=(*front, *rest),
        environment={**command.environment, **options.pairs("env")},
        num_gpus=len(devices) or command.num_gpus,
        launcher="",
        release=image_release(image),
        devices=devices or command.devices,
        node=least(memory, command.node),
        detached="detach" in options.given,
        given_by=f"{name} --gpus" if devices else command.given_by,
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
