"""Reads `sglang serve` and `python -m sglang.launch_server`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...ledger.frameworks import SGLANG
from ...runfile.text.errors import InputError, quoted
from ..reading.command import Command
from ..reading.keys import sort_keys
from ..reading.named_files import NamedFiles
from ..reading.option_values import add_limit, json_object, sort_options, whole_number
from ..reading.options import option_syntax, parse_options, parsed_value
from ..reading.reading import Reading, Section
from ..reading.server_options import (
    NOT_READ,
    add_checkpoint_limit,
    config_words,
    server_hardware,
    with_config,
)
from ..translation.arguments import argument_table
from .translate import NOT_QUANTIZED, ONLINE, STRETCHED, inference_section

TITLE = "SGLang"
FOLDER = Path(__file__).parent
ARGUMENTS = argument_table("arguments", FOLDER)
SYNTAX = option_syntax("arguments", FOLDER)
VARIABLES = argument_table("environment", FOLDER)
PREFIX = "SGLANG_"
OVERRIDES = "json_model_override_args"
ASSUMED = "SGLang {}'s defaults: mem_fraction_static, chunked_prefill_size and graphs by the card"


def read_command(command: Command) -> Reading:
    """What a command means."""
    return read_arguments(command.words[1 if command.module else 2 :], command)


def read_data(data: Mapping[str, Any], files: NamedFiles) -> Reading:
    """What a file for --config means."""
    return read_arguments(config_words(data, SYNTAX), Command(words=(), files=files))


def read_arguments(words: Sequence[str], command: Command) -> Reading:
    """What the arguments of a server mean."""
    reading = Reading(tool=TITLE, version=SGLANG.version)
    parsed = parse_options(TITLE, with_config(words, command.files, SYNTAX), ARGUMENTS, SYNTAX)
    if parsed.values.get("model_type") == "diffusion":
        raise InputError("--model-type diffusion serves pictures and videos, which is not modelled")
    reading.problems += parsed.problems
    kept = sort_options(reading, ARGUMENTS, parsed.values)
    section = inference_section(reading, kept)
    section |= _positions(reading, kept, section)
    given = {name: parsed_value(text) for name, text in command.environment.items()}
    own = {name: one for name, one in given.items() if PREFIX in name[:7] or name in VARIABLES}
    sort_keys(reading, VARIABLES, own)
    model, method = _model(parsed.positional, kept), kept.get("quantization")
    if str(method) not in (*ONLINE, NOT_QUANTIZED):
        add_checkpoint_limit(reading, method, model)
    nodes = whole_number("nnodes", kept.get("nnodes", 1))
    reading.run = {
        "model": {"name": model},
        "inference": section,
        "hardware": server_hardware(reading, section, nodes, command, "--tp-size"),
    }
    reading.assumed = [ASSUMED.format(SGLANG.version)]
    return reading


def _model(positional: Sequence[str], kept: Mapping[str, Any]) -> str:
    name = kept.get("model_path") or (positional[0] if positional else None)
    if not isinstance(name, str) or not name:
        raise InputError(f"{TITLE} needs --model-path and a model's name after it")
    return name


def _positions(reading: Reading, kept: Mapping[str, Any], section: Section) -> Section:
    """The longest sequence, where --json-model-override-args changes it."""
    value = kept.get(OVERRIDES)
    if value is None or value == "{}":
        return {}
    keys = json_object(OVERRIDES, value)
    inner = keys.pop("text_config", None)
    keys |= inner if isinstance(inner, Mapping) else {}
    for key in keys.keys() - set(STRETCHED):
        add_limit(reading, f"{OVERRIDES}.{key}", keys[key], NOT_READ, "either")
    if "max_seq_len" in section:
        return {}
    if "max_position_embeddings" in keys:
        name = f"{OVERRIDES}.max_position_embeddings"
        return {"max_seq_len": whole_number(name, keys["max_position_embeddings"])}
    if keys.keys() & set(STRETCHED):
        why = "may allow longer sequences; set --context-length"
        add_limit(reading, OVERRIDES, quoted(json.dumps(keys)), why, "more")
    return {}
