"""The tools whose commands and files are read: how each is recognised, and its reader, which gets
and gives no secrets.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib import import_module
from itertools import pairwise
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ...ledger import frameworks
from ...ledger.secrets import REASON, hidden, hidden_words, hide, without_secrets
from ...runfile.file_kinds import is_model_config, is_run_file
from ...runfile.text.errors import InputError
from ..rows import READ, tool_rows
from .command import MPS_LIMIT, Command
from .named_files import NamedFiles
from .reading import Limit, Reading

MOST_GPUS = 16  # of a machine
DEVICES = re.compile(r"(CUDA|ROCm)\d+(,(CUDA|ROCm)\d+)*")  # of llama.cpp
CARD_KEYS = frozenset({"gpu", "gpu_memory_gb", "gpu_memory_bytes"})  # of a hardware section
MPS = Limit(
    key=MPS_LIMIT,
    why="clients of MPS share a context, so each takes less outside torch than a process alone",
    could="less",
    saves=2**30,
)
UNKNOWN = " $"  # begins what a shell script does not say
OBJECT = re.compile(r"=['\"]?[\[{]*\{.*", re.DOTALL)  # the JSON that an option has as its value
# Keys of tools' files that may have a model_type, too.
NOT_OF_MODELS = frozenset({"base_model", "model_name_or_path", "per_device_train_batch_size"})


class UnknownToolError(InputError):
    """A command that starts no tool that is known, so that nothing can be said of it."""


class Format(Struct, frozen=True, kw_only=True):
    """A tool: its title, the release that was read, and how its commands and files are recognised.

    - `version`: in the row itself, or of the `frameworks` that it names (ledger/frameworks.py)
    - `folder`: the folder of the row; its `read.py` has `read_command(command)` and, where
      the tool has files, `read_data(data, files)`
    - `programs`: patterns of the program's name, with its first argument where that decides
      (`vllm serve`); `modules`: patterns of modules that `python -m` starts;
      `paths`: patterns of a script's path, where its name alone does not decide;
      `options`: patterns of a program's name, with options that only this tool's has, all of them
    - `keys`: sets of keys; a file with every key of one set is the tool's; `wins`: also where it
      has a section as a run file has, such as `model`
    """

    title: str
    version: str
    folder: str
    programs: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    options: Mapping[str, tuple[str, ...]] = {}
    modules: tuple[str, ...] = ()
    keys: tuple[frozenset[str], ...] = ()
    wins: bool = False


def _format(folder: str, row: Mapping[str, Any]) -> Format:
    read = [getattr(frameworks, name).version for name in row.get("frameworks", ())]
    version = row.get("version") or " and ".join(read)
    return msgspec.convert({**row, "folder": folder, "version": version}, Format)


# One row for each tool, in the order in which they are tried.
FORMATS: Mapping[str, Format] = {name: _format(name, row) for name, row in tool_rows(READ).items()}


def read_command(command: Command) -> Reading:
    """What a command means, by the reader of its tool."""
    found = command_format(command)
    if found is None:
        name = command.words[0]
        known = ", ".join(one.title for one in FORMATS.values() if one.programs or one.modules)
        raise UnknownToolError(f"{name!r} starts no tool that is known; known are {known}")
    if command.gpu_bytes is None and command.card is not None:
        command = replace(command, gpu_bytes=command.card.least_bytes)
    if command.release is not None:
        command = replace(command, files=command.files.finding(command.release))
    result: Reading = _reader(found).read_command(safe_command(command))
    _at_release(result, command.release.version if command.release else "")
    result.assumed[:0] = command.assumed
    _add_unsaid(result, command.unsaid)
    return safe_reading(with_card(result, command))


def _add_unsaid(reading: Reading, unsaid: str) -> None:
    """What a script's own words leave open, in the place of the problems that follow from it."""
    reading.unsaid = unsaid
    others = [one for one in reading.problems if UNKNOWN not in one]
    if unsaid and len(others) < len(reading.problems):
        reading.problems = [*others, unsaid]


def _at_release(reading: Reading, version: str) -> None:
    """The release of a server that the tag of its image says."""
    server = reading.run.get("inference")
    if version and isinstance(server, dict):
        server.setdefault("engine_version", version)
        words = f"{reading.tool} {version}, as the image's tag says; its options are read as"
        reading.assumed = [f"{words} those of {reading.version}", *reading.assumed_at_a_release]


def with_card(reading: Reading, command: Command) -> Reading:
    """A reading with the card of its command, and with what tells it from other commands."""
    reading.name, reading.slots = command.name, command.slots
    reading.devices = _option_devices(command) or command.devices
    reading.limits += command.limits
    if command.node is not None:
        own = reading.run.get("hardware") or {}
        reading.run["hardware"] = {**own, **command.node.hardware}
    if command.mps_bytes is not None:
        own = reading.run.get("hardware") or {}
        reading.run["hardware"] = {**own, "available_memory_bytes": command.mps_bytes}
        reading.limits.append(MPS)
    card = reading.card = command.card
    if card is None:
        return reading
    own = reading.run.get("hardware") or {}
    if not own.keys() & CARD_KEYS:
        reading.run["hardware"] = {**card.hardware, **own}
    if not card.is_known:
        reading.assumed.append(f"{card.said} names no card that is known")
    elif card.at_least:
        why = "the card can have more memory than the least that is said"
        reading.limits.append(Limit(key=card.said, why=why, could="less"))
    else:
        reading.assumed.append(f"the card by {card.said}")
    return reading


def _option_devices(command: Command) -> tuple[str, ...]:
    """The GPUs that a server's own option names: SGLang's first one, llama.cpp's devices."""
    words = [part for word in command.words for part in word.split("=", 1)]
    for word, value in pairwise(words):
        if word == "--base-gpu-id" and value.isdecimal() and len(value) < 4:
            return tuple(str(int(value) + i) for i in range(MOST_GPUS))
        if word in ("-dev", "--device") and DEVICES.fullmatch(value):
            return tuple(re.findall(r"\d+", value))
    return ()


def command_format(command: Command) -> Format | None:
    """The tool that a command starts."""
    return next((one for one in FORMATS.values() if _starts(one, command)), None)


def read_data(data: Mapping[str, Any], files: NamedFiles) -> Reading | None:
    """What a file of another tool means; None where no tool's keys are in it."""
    found = file_format(data)
    if found is None:
        return None
    return safe_reading(_reader(found).read_data(data, files))


def file_format(data: Any) -> Format | None:
    """The tool whose file the data is, by its keys; None for a run file or a model's."""
    if not isinstance(data, Mapping):
        return None
    given = frozenset(str(key) for key in data)
    if is_run_file(data):
        winners = (one for one in FORMATS.values() if one.wins)
        return next((one for one in winners if any(keys <= given for keys in one.keys)), None)
    if is_model_config(data) and not data.keys() & NOT_OF_MODELS:
        return None
    tools = (one for one in FORMATS.values() if any(keys <= given for keys in one.keys))
    return next(tools, None)


def _starts(tool: Format, command: Command) -> bool:
    if command.module:
        return any(re.fullmatch(one, command.words[0]) for one in tool.modules)
    words = [command.program, *command.words[1:2]]
    path = command.words[0].replace("\\", "/")
    given = {word.partition("=")[0].replace("-", "_") for word in command.words[1:]}
    if any(
        re.fullmatch(one, command.program) and {name.replace("-", "_") for name in names} <= given
        for one, names in tool.options.items()
    ):
        return True
    return any(re.fullmatch(one, path) for one in tool.paths) or any(
        re.fullmatch(one, " ".join(words[: one.count(" ") + 1])) for one in tool.programs
    )


def _reader(tool: Format) -> Any:
    return import_module(f"..{tool.folder}.read", __package__)


def safe_command(command: Command) -> Command:
    """The command with the secrets in its words and variables replaced."""
    environment = hidden(dict(command.environment))
    return replace(command, words=tuple(hidden_words(command.words)), environment=environment)


def safe_reading(reading: Reading) -> Reading:
    """The reading without secrets: their keys are free, and what they were is said nowhere.

    An object that is not modelled is named without what is in it, which may be anything.
    """
    dropped: list[str] = []
    reading.run = without_secrets(reading.run, dropped)
    for name in dict.fromkeys(dropped):
        if not any(key.lstrip("-").replace("-", "_") == name for key in reading.keys):
            reading.keys[name] = "free"
        reading.assumed.append(f"{name}: {REASON}")
    reading.assumed = [hide(one) for one in reading.assumed]
    reading.problems = [hide(one) for one in reading.problems]
    reading.limits = [
        replace(one, key=hide(OBJECT.sub("={...}", one.key)), why=hide(one.why))
        for one in reading.limits
    ]
    return reading


def read_alone(commands: Sequence[Command]) -> Reading:
    """What a file means that may have one command only."""
    if len(commands) > 1:
        names = ", ".join(one.name for one in commands)
        raise InputError(f"it has {len(commands)} commands ({names}); use gpu-mem-calc check")
    return read_command(commands[0])
