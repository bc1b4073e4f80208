"""Reads `vllm serve`, its API server as a module, and the arguments of its container image."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...ledger.frameworks import VLLM
from ...runfile.text.errors import InputError
from ..reading.command import Command
from ..reading.keys import sort_keys
from ..reading.named_files import NamedFiles
from ..reading.option_values import add_limit, json_object, option, sort_options, whole_number
from ..reading.options import option_syntax, parse_options, parsed_value, renamed_note
from ..reading.reading import Reading, Section
from ..reading.server_options import (
    NOT_READ,
    add_checkpoint_limit,
    config_words,
    name_device,
    server_hardware,
    with_config,
)
from ..translation.arguments import argument_table, assumed_defaults, flat_arguments
from .translate import CONNECTOR, ONLINE, inference_section
from .words import joined_words, merged

TITLE = "vllm serve"
FOLDER = Path(__file__).parents[1]
ARGUMENTS = argument_table("vllm/arguments", FOLDER)
SYNTAX = option_syntax("vllm/arguments", FOLDER)
FIELDS = argument_table("vllm/json_fields", FOLDER)
VARIABLES = argument_table("vllm/environment", FOLDER)
JSON_OPTIONS = tuple(dict.fromkeys(name.partition(".")[0] for name in FIELDS))
OVERRIDES = "hf_overrides"
OMNI = "--omni"
ASSUMED = ("gpu_memory_utilization", "dtype", "kv_cache_dtype")


def read_command(command: Command) -> Reading:
    """What a command means; words that start with an option are the image's arguments."""
    start = 1 if command.module else 0 if command.words[0].startswith("-") else 2
    return read_arguments(command.words[start:], command)


def read_data(data: Mapping[str, Any], files: NamedFiles) -> Reading:
    """What a file for --config means."""
    return read_arguments(config_words(data, SYNTAX), Command(words=(), files=files))


def read_arguments(words: Sequence[str], command: Command) -> Reading:
    """What the arguments after `vllm serve` mean."""
    if OMNI in words:
        raise InputError(f"{OMNI} starts vLLM-Omni, another package, which is not read")
    reading = Reading(tool=TITLE, version=VLLM.version)
    joined = joined_words(with_config(words, command.files, SYNTAX))
    parsed = parse_options(TITLE, _merged_objects(joined), ARGUMENTS, SYNTAX)
    reading.problems += parsed.problems
    reading.assumed += renamed_note(parsed)
    kept = sort_options(reading, ARGUMENTS, parsed.values)
    kept |= _fields(reading, kept)
    section = inference_section(reading, kept)
    section |= _variables(reading, command.environment)
    if CONNECTOR in kept:
        from .connectors import connector_keys

        section |= connector_keys(reading, kept, command)
    model, method = _model(parsed.positional, kept), kept.get("quantization")
    if str(method) not in ONLINE:
        add_checkpoint_limit(reading, method, model)
    reading.run = {
        "model": {"name": model},
        "inference": section,
        "hardware": _hardware(reading, section, kept, command),
    }
    rows = {name: ARGUMENTS[name] for name in ASSUMED}  # defaults that change memory
    sentence = assumed_defaults(f"vLLM {VLLM.version}", rows, kept)
    reading.assumed += [sentence] if sentence else []
    return reading


def _merged_objects(words: Sequence[str]) -> list[str]:
    """The words, with a JSON option that is given twice as one: its fields are joined."""
    places: dict[str, int] = {}
    result = list(words)
    for place in range(len(result) - 1):
        name = result[place].lstrip("-").replace("-", "_")
        name = SYNTAX.aliases.get(result[place], name)
        if name not in JSON_OPTIONS or not result[place].startswith("-"):
            continue
        if name in places:
            first, second = parsed_value(result[places[name]]), parsed_value(result[place + 1])
            both = merged(json_object(name, first), json_object(name, second))
            result[place + 1] = json.dumps(both)
        places[name] = place + 1
    return result


def _fields(reading: Reading, kept: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of JSON options by their full names, sorted like options."""
    given: dict[str, Any] = {}
    for name in JSON_OPTIONS:
        if kept.get(name) is not None:
            value = json_object(name, kept[name])
            value = _overrides(value) if name == OVERRIDES else value
            given |= flat_arguments(FIELDS, {name: value})
    other = [name for name in given if name.startswith(OVERRIDES) and name not in FIELDS]
    for name in other:  # any key of config.json
        reading.keys[option(name)] = "refused"
        add_limit(reading, name, given.pop(name), NOT_READ, "either")
    return sort_options(reading, FIELDS, given)


def _overrides(value: Mapping[str, Any]) -> dict[str, Any]:
    """Keys of config.json, those of a text model inside it as if they were outside."""
    nested = value.get("text_config")
    outer = {key: one for key, one in value.items() if key != "text_config"}
    return {**outer, **(nested if isinstance(nested, Mapping) else {})}


def _variables(reading: Reading, environment: Mapping[str, str]) -> Section:
    """Keys of `inference` from vLLM's variables."""
    given = {name: parsed_value(text) for name, text in environment.items() if name[:5] == "VLLM_"}
    # vLLM 0.33.0 envs.py validate_environ warns of a variable that it does not know, and goes on
    unknown = [name for name in given if name not in VARIABLES]
    reading.assumed += [f"{name} is no variable of vLLM; it has no effect" for name in unknown]
    kept = sort_keys(reading, VARIABLES, {k: v for k, v in given.items() if k not in unknown})
    section: Section = {}
    if kept.get("VLLM_USE_FLASHINFER_SAMPLER") is not None:
        section["use_flashinfer_sampler"] = bool(kept["VLLM_USE_FLASHINFER_SAMPLER"])
    if kept.get("VLLM_USE_V1") == 0:
        section["engine_generation"] = "v0"
    return section


def _model(positional: Sequence[str], kept: Mapping[str, Any]) -> str:
    name = positional[0] if positional else kept.get("model")
    if not isinstance(name, str) or not name:
        raise InputError(f"{TITLE} needs a model's name after it")
    return name


def _hardware(
    reading: Reading, section: Section, kept: Mapping[str, Any], command: Command
) -> Section:
    """GPUs of all ranks, and the nodes that the command names."""
    nodes = whole_number("nnodes", kept.get("nnodes", 1))
    replicas = section.get("data_parallel_size", 1)
    local = kept.get("data_parallel_size_local")
    if nodes == 1 and local is not None:
        nodes = max(1, replicas // max(1, whole_number("data_parallel_size_local", local, least=0)))
    name_device(reading, kept.get("device"))
    return server_hardware(reading, section, nodes, command, "--tensor-parallel-size")
