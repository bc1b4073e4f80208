"""Reads torchtitan's commands and TOML files (torchtitan 0.2.2 config/manager.py, run_train.sh).

`torchrun -m torchtitan.train --job.config_file FILE --section.key value`; run_train.sh starts it
with the file in CONFIG_FILE and the GPUs of a node in NGPU.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ...ledger.frameworks import TORCHTITAN
from ...runfile.text.errors import InputError, quoted
from ..reading.command import Command
from ..reading.keys import sort_keys
from ..reading.named_files import NamedFiles
from ..reading.options import OptionSyntax, parse_options
from ..reading.reading import Reading
from ..translation.arguments import argument_table, flat_arguments

TOOL = "torchtitan"
TABLE = argument_table("torchtitan/arguments")
FILE, NAME, LLAMA = "job.config_file", "model.name", "llama3"
SCRIPT, GPUS = "run_train.sh", 8  # of a node, where NGPU does not say it
SYNTAX = OptionSyntax(
    switches=frozenset(name for name, row in TABLE.items() if isinstance(row.default, bool)),
    lists=frozenset(name for name, row in TABLE.items() if isinstance(row.default, list)),
    abbreviations=False,
)
OFF = re.compile(r"--([\w.]+)\.no[-_]([\w-]+)")  # --profiling.no-enable-profiling


def read_command(command: Command) -> Reading:
    """A command: the keys of its file, with those of its options over them."""
    words = [OFF.sub(r"--\1.\2=false", word) for word in command.words[1:]]
    parsed = parse_options(TOOL, words, TABLE, SYNTAX)
    given, gpus = dict(parsed.values), command.num_gpus
    file = given.get(FILE)
    if command.program == SCRIPT:
        file = file or command.environment.get("CONFIG_FILE")
        gpus = gpus or command.count("NGPU") or GPUS
    if file is None and not given:
        raise InputError(f"{TOOL} needs --{FILE} FILE.toml, or CONFIG_FILE for {SCRIPT}")
    data = _file(str(file), command.files) if file else {}
    reading = _reading({**data, **given}, gpus, command.num_nodes)
    reading.problems += [*parsed.problems, *_strays(parsed.strays)]
    return reading


def read_data(data: Mapping[str, Any], files: NamedFiles) -> Reading:
    """A file, on as many GPUs as the run file says."""
    return _reading(flat_arguments(TABLE, dict(data)), None, 1)


def _file(name: str, files: NamedFiles) -> dict[str, Any]:
    data = files.data(name, f"--{FILE}")
    if not isinstance(data, Mapping):
        raise InputError(f"--{FILE} {name}: a file of {TOOL} has sections and keys")
    return flat_arguments(TABLE, dict(data))


def _strays(words: Sequence[str]) -> list[str]:
    return [f"{quoted(word)} is not an option of {TOOL}; write --section.key" for word in words]


def _reading(given: Mapping[str, Any], gpus: int | None, nodes: int) -> Reading:
    reading = Reading(tool=TOOL, version=TORCHTITAN.version)
    kept = sort_keys(reading, TABLE, given)
    name = given.get(NAME, LLAMA)
    if name != LLAMA:
        reading.problems.append(f"{NAME}={quoted(name)} is not modelled; {LLAMA} is")
    hardware = {"num_gpus": gpus} if gpus else {}
    reading.run["hardware"] = {**hardware, **({"num_nodes": nodes} if nodes > 1 else {})}
    reading.run["program"] = {"tool": TOOL, "args": {k: v for k, v in kept.items() if k != FILE}}
    return reading
