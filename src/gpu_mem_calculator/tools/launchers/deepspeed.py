"""The `deepspeed` command (DeepSpeed 0.19.8 launcher/runner.py)."""

from __future__ import annotations

import re

from msgspec.structs import replace

from ...runfile.text.errors import InputError
from ..reading.command import Command
from .launcher_options import LauncherOptions, split_options

PROGRAMS = ("deepspeed", "deepspeed.pt", "ds")
MODULES = ("deepspeed.launcher.runner",)
HOST = re.compile(r"(\S+)\s+slots=(\d+)")
VISIBLE = "CUDA_VISIBLE_DEVICES"


def without_deepspeed(command: Command) -> Command:
    """The command that `deepspeed` starts, with the number of its GPUs and nodes."""
    options = split_options("deepspeed", command.words[1:])
    hosts, include = _hosts(command, options), options.last("include") or ""
    slots = include.partition(":")[2]  # which GPUs, where it names those of one host
    return replace(
        command,
        words=options.rest,
        module="module" in options.given,
        launcher="deepspeed",
        num_nodes=max(1, len(hosts)),
        num_gpus=None if None in hosts.values() else sum(one or 0 for one in hosts.values()),
        devices=tuple(slots.split(",")) if slots and "@" not in include else command.devices,
    )


def _hosts(command: Command, options: LauncherOptions) -> dict[str, int | None]:
    """The GPUs of each host; None where only the machine knows it."""
    hosts: dict[str, int | None] = dict(_hostfile(command, options))
    include, exclude = options.last("include"), options.last("exclude")
    gpus, nodes = options.number("num_gpus", "num_accelerators"), options.number("num_nodes")
    if (gpus or nodes) and (include or exclude):
        what = "--num_gpus and --num_nodes do not go with --include and --exclude"
        raise InputError(f"deepspeed: {what}; leave one out")
    if include:
        return {name: count or hosts.get(name) for name, count in _filter(include).items()}
    for name, count in _filter(exclude or "").items():
        have = hosts.get(name)
        hosts[name] = None if have is None else have - (count or have)
    kept = {name: slots for name, slots in hosts.items() if slots != 0}
    if not kept:
        visible = [one for one in command.environment.get(VISIBLE, "").split(",") if one.strip()]
        kept = {"localhost": len(visible) or None}
        # a hostfile that cannot be read has at least as many hosts as --num_nodes
        kept |= {f"host {number}": None for number in range(1, nodes or 1)}
    kept = dict(list(kept.items())[: nodes or len(kept)])
    return {name: gpus or slots for name, slots in kept.items()}


def _hostfile(command: Command, options: LauncherOptions) -> dict[str, int]:
    """The slots of each host in a hostfile that can be read."""
    name = options.last("hostfile")
    if name is None or not command.files.exists(name):
        return {}
    lines = command.files.text(name, "--hostfile").splitlines()
    return {found[1]: int(found[2]) for line in lines if (found := HOST.match(line.strip()))}


def _filter(text: str) -> dict[str, int | None]:
    """The hosts of --include or --exclude, with the number of their slots that are named."""
    hosts: dict[str, int | None] = {}
    for spec in filter(None, text.split("@")):
        name, _, slots = spec.partition(":")
        hosts[name] = len(set(slots.split(","))) if slots else None
    return hosts
