"""A command of a user's own script whose text can be read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...runfile.text.errors import InputError
from ..reading.command import Command
from ..reading.reading import Reading
from ..script.reader import read_script
from ..script.record import ScriptRecord
from .own_options import MODEL_NAMES
from .passed_on import PassedOn, passed_on
from .script_rows import limited
from .trainers import is_loop, made_trainer, trainer_of_text

Section = dict[str, Any]
FILE_PARSERS = {"TrlParser", "H4ArgumentParser"}  # they read --config themselves


def follow(command: Command, given: Mapping[str, Any]) -> ScriptRecord | None:
    """What the script does with these options; None where its file cannot be read."""
    path = command.words[0]
    if command.module or not command.files.exists(path):
        return None
    gpus = command.num_gpus or 1
    environment = dict(command.environment)
    if command.launcher:
        environment = {"WORLD_SIZE": str(gpus), "RANK": "0", "LOCAL_RANK": "0", **environment}
    text = command.files.text(path)
    return read_script(text, path, command.files, given, environment, gpus, command.words)


def tool_of(found: ScriptRecord, command: Command) -> str:
    """The trainer of a script, or a sentence where it makes none."""
    tool = trainer_of_text(found, command.program)
    if tool is None:
        why = "makes no trainer of transformers or TRL, so its arguments do not say what it does"
        use = f"use gpu-mem-calc trace -- python {command.words[0]}"
        raise InputError(f"{command.program} {why}; {use}")
    return tool


def own_names(found: ScriptRecord) -> set[str]:
    """Names of options and fields that the script itself declares."""
    return set(found.options)


def parses_arguments(found: ScriptRecord) -> bool:
    """Whether a parser of transformers or TRL makes the trainer's arguments options."""
    return any(one.kind == "arguments" and "(parsed)" in one.values for one in found.things)


def reads_config(found: ScriptRecord) -> bool:
    """Whether the script's parser reads the file of --config itself."""
    return bool(found.facts.get("parsers", set()) & FILE_PARSERS)


def script_means(
    found: ScriptRecord, tool: str, reading: Reading, given: Mapping[str, Any]
) -> PassedOn:
    """What the script hands to its trainer; a model that it does not show is taken by the usual
    name of its option.
    """
    trainer = made_trainer(found)
    if trainer is None and not is_loop(found):
        why = "the trainer is made where the text cannot be followed"
        limited(reading, 0, tool.rpartition(".")[2], why)
    result = passed_on(found, trainer, tool, reading, given)
    options = {**found.options, **given}
    for name in ("model_name_or_path", *MODEL_NAMES):
        value = options.get(name)
        if isinstance(value, str) and "config" not in result.model:
            result.values.setdefault("model_name_or_path", value)
    return result
