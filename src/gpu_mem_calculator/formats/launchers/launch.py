"""Removes launchers from the front of a command, and keeps what they say."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePath

from msgspec.structs import replace

from ...core.errors import InputError
from ..reading.command import Command
from ..reading.named_files import NamedFiles
from .wrappers import without_wrappers

PYTHON = re.compile(r"(python|pypy)(3(\.\d+)?)?(\.exe)?")
VISIBLE = "CUDA_VISIBLE_DEVICES"


def read_launch(
    words: Sequence[str], files: NamedFiles, environment: Mapping[str, str] | None = None
) -> Command:
    """The program that a command starts, without the launchers in front of it."""
    variables, rest = without_wrappers(words)
    command = Command(
        words=tuple(rest), files=files, environment={**(environment or {}), **variables}
    )
    command = _unwrapped(command)
    if command.num_gpus is None and command.environment.get(VISIBLE, "").strip():
        visible = command.environment[VISIBLE].split(",")
        command = replace(command, num_gpus=len([one for one in visible if one.strip()]))
    return command


def _unwrapped(command: Command) -> Command:
    """The command without python and the launchers that start Python."""
    if not command.words:
        raise InputError("there is no command to check; write it after gpu-mem-calc check")
    name = PurePath(command.program).name
    if PYTHON.fullmatch(name):
        return _python(command)
    return command


def _python(command: Command) -> Command:
    rest = list(command.words[1:])
    while rest and rest[0].startswith("-") and rest[0] != "-m":
        if rest[0] in ("-c", "-"):
            raise InputError("python -c has no script that can be read; write it to a file")
        del rest[: 2 if rest[0] in ("-X", "-W") else 1]
    module = rest[:1] == ["-m"]
    rest = rest[1:] if module else rest
    if not rest:
        raise InputError("python needs a script or -m MODULE after it")
    return _unwrapped(replace(command, words=tuple(rest), module=module))
