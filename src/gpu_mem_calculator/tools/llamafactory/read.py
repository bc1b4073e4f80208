"""Reads LLaMA-Factory's commands and YAML files (commit ff6d4d1).

`llamafactory-cli train FILE key=value ...` and `src/train.py FILE` merge the pairs into the file;
options in their place are those of HfArgumentParser (hparams/parser.py read_args).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...ledger import frameworks
from ...runfile.text.errors import InputError, quoted
from ...runfile.text.yaml_text import parse_yaml
from ..reading.command import Command
from ..reading.keys import sort_keys
from ..reading.named_files import NamedFiles
from ..reading.reading import Reading
from ..reading.trainer_arguments import (
    chosen_values,
    file_arguments,
    parsed_arguments,
    type_problems,
)
from ..translation.arguments import assumed_defaults
from .arguments import OWN, TABLE
from .launch import FactoryProcesses, command_launch
from .megatron import WITH_MEGATRON, is_megatron, megatron_run
from .second_version import is_second_version, read_second_version
from .serving import serving_run
from .stages import STAGES
from .training import training_run

TOOL = "LLaMA-Factory"
FILES = (".yaml", ".yml", ".json")
STARTS = (["train"], ["sft"], ["dpo"], ["rm"])  # the last three are those of the second version


def read_command(command: Command) -> Reading:
    """A training command: a file followed by key=value pairs, or options."""
    words = list(command.words[1:])
    if words[:1] in STARTS:
        words = words[1:]
    given, problems = _given(words, command.files)
    reading = _read(given, command.files, command_launch(command, given))
    reading.problems += problems
    return reading


def read_data(data: Mapping[str, Any], files: NamedFiles) -> Reading:
    """A file for training, chat or export, started without a launcher."""
    return _read(data, files, FactoryProcesses())


def _read(given: Mapping[str, Any], files: NamedFiles, launch: FactoryProcesses) -> Reading:
    reading = Reading(tool=TOOL, version=frameworks.LLAMA_FACTORY.version)
    if is_second_version(given):
        return read_second_version(reading, given, files, launch)
    megatron = is_megatron(given, launch)
    table = WITH_MEGATRON if megatron else TABLE
    kept = sort_keys(reading, table, given)
    reading.problems += type_problems(table, kept)
    if not isinstance(given.get("model_name_or_path"), str):
        reading.problems.append("model_name_or_path is missing; name the model")
    if reading.problems:
        return reading
    values = chosen_values(table, kept)
    if values["stage"] not in (*STAGES, "ppo"):
        known = ", ".join((*STAGES, "ppo"))
        reading.problems.append(f"stage={quoted(values['stage'])} must be one of {known}")
        return reading
    revision = {"revision": values["model_revision"]} if "model_revision" in kept else {}
    reading.run["model"] = {"name": values["model_name_or_path"], **revision}
    if "stage" not in kept and not values["do_train"]:
        serving_run(reading, kept, values)
        return reading
    if megatron:
        megatron_run(reading, values, launch)
    else:
        training_run(reading, kept, values, files, launch)
    own = {name: TABLE[name] for name in OWN}
    assumed = assumed_defaults(f"{TOOL} {reading.version}", own, given)
    reading.assumed += [assumed] if assumed else []
    return reading


def _given(words: Sequence[str], files: NamedFiles) -> tuple[dict[str, Any], list[str]]:
    """The keys that a command gives, and its problems."""
    if not words or not words[0].endswith(FILES):
        return parsed_arguments(TOOL, words, TABLE)
    given = file_arguments(TOOL, words[0], files, "llamafactory-cli train")
    for word in words[1:]:
        name, sign, value = word.partition("=")
        if not sign:
            raise InputError(f"{quoted(word)} after {words[0]} must be a pair key=value")
        given[name] = parse_yaml(value) if value.strip() else None
    return given, []
