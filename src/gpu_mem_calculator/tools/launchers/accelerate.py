"""`accelerate launch`: its options and its YAML as one configuration, in the names of the YAML.

accelerate 1.15.0 commands/launch.py (_validate_launch_command), commands/config/config_args.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from ...ledger.quoting import quoted
from ...runfile.text.errors import InputError, nearest
from ..reading.command import Command
from ..translation.arguments import tables
from .launcher_options import LauncherOptions, split_options

TABLES = tables(__file__)
Section = dict[str, Any]
PROGRAMS = ("accelerate", "accelerate-launch")
MODULES = ("accelerate.commands.launch", "accelerate.commands.accelerate_cli")
# Options that choose how it is distributed, and the file's word for it.
KINDS = {"use_deepspeed": "DEEPSPEED", "use_fsdp": "FSDP", "multi_gpu": "MULTI_GPU"}
# Options by the section of the file that they are in.
SECTIONS: dict[str, Any] = TABLES["sections"]
PREFIXES: dict[str, str] = TABLES["prefixes"]
PREFIXED = ("fsdp_config", "fp8_config", "dynamo_config")  # the launcher adds the prefix to keys
SHARED = ("mixed_precision", "num_processes", "num_machines", "gpu_ids")
WHAT_TO_READ = "a configuration for GPUs; use distributed_type MULTI_GPU, FSDP or DEEPSPEED"
NOT_READ = {"cpu": "--cpu", "tpu": "--tpu", "use_megatron_lm": "--use_megatron_lm"}
# Keys of a file (ClusterConfig), with those that older releases wrote.
FILE_KEYS = tuple(TABLES["file_keys"])
LOCAL = "LOCAL_MACHINE"
BUNDLED: Mapping[str, Section] = TABLES["bundled"]
BUNDLED_NOTE = "{} is not here; it is taken as LLaMA-Factory has it (commit 2026-08-18)"
OLD_KEYS = ("fp16", "dynamo_backend")  # config_args.py process_config converts them


def without_accelerate(command: Command) -> Command:
    """The command that `accelerate launch` starts, with its configuration."""
    words = command.words[1:]
    if command.program == "accelerate" or command.words[0].endswith("accelerate_cli"):
        if words[:1] != ("launch",):
            asked = f"accelerate {' '.join(words[:1])}".strip()
            raise InputError(f"{asked} starts no program; only accelerate launch is read")
        words = words[1:]
    options = split_options("accelerate", words)
    for name, written in NOT_READ.items():
        if name in options.given:
            raise InputError(f"accelerate launch {written} is not read: give {WHAT_TO_READ}")
    path = options.last("config_file")
    own = None if not path or command.files.exists(path) else bundled(path)
    if own is not None:
        command = replace(command, assumed=(*command.assumed, BUNDLED_NOTE.format(path)))
    data = own or (command.files.data(path, "--config_file") if path else {})
    launched = with_accelerate(command, options, file_settings(data, path or ""))
    return replace(launched, words=options.rest, module="module" in options.given)


def bundled(path: str) -> Section | None:
    """The settings of a file that LLaMA-Factory has in examples/accelerate, without the number of
    processes, which its users write there; None for another file.
    """
    name = re.fullmatch(r"(?:.*/)?accelerate/(\w+\.yaml)", path.replace("\\", "/"))
    found: Section | None = BUNDLED.get(name[1]) if name else None
    return dict(found) if found else None


def with_accelerate(command: Command, options: LauncherOptions, file: Mapping[str, Any]) -> Command:
    """A command that is started by `accelerate launch` with these options and this file."""
    merged = merge(file, options)
    return replace(
        command,
        launcher="accelerate",
        accelerate=merged,
        num_gpus=_processes(merged, has_file=bool(file)),
        num_nodes=_count(merged, "num_machines") or 1,
        assumed=(*command.assumed, *(() if file else _no_file(options))),
        devices=tuple(re.findall(r"\d+", str(merged.get("gpu_ids", "")))) or command.devices,
    )


def file_settings(data: Any, path: str) -> Section:
    """The settings of a YAML or JSON file, in the names of this release."""
    if not isinstance(data, Mapping):
        raise InputError(f"--config_file {path}: it is an object of settings, not {quoted(data)}")
    if data.get("compute_environment", LOCAL) != LOCAL:
        asked = f"{path}: compute_environment={quoted(data['compute_environment'])}"
        raise InputError(f"{asked} is not read; use {LOCAL}")
    known = (*FILE_KEYS, *OLD_KEYS)
    problems = [
        f"{path}: {key} is not a key of Accelerate 1.15.0{nearest(str(key), known)}"
        for key in data
        if key not in known
    ]
    for name in FILE_KEYS:
        if name.endswith("_config") and not isinstance(data.get(name, {}), Mapping | None):
            problems.append(f"{path}: {name}={quoted(data[name])} must be an object")
    if problems:
        raise InputError(problems)
    file: Section = {key: value for key, value in data.items() if value is not None}
    if file.pop("fp16", False):
        file.setdefault("mixed_precision", "fp16")
    backend = file.pop("dynamo_backend", None)
    if backend is not None and str(backend).upper() != "NO":
        file["dynamo_config"] = {"dynamo_backend": backend}
    return file


def merge(file: Mapping[str, Any], options: LauncherOptions) -> Section:
    """The settings of a file with options over them."""
    merged: Section = {
        key: _prefixed(key, value) if isinstance(value, Mapping) else value
        for key, value in file.items()
    }
    kind = next((kind for name, kind in KINDS.items() if name in options.given), None)
    if kind is not None:
        merged["distributed_type"] = kind
    for name, values in options.given.items():
        section = next((key for key, names in SECTIONS.items() if name in names), None)
        section = section or next((s for p, s in PREFIXES.items() if name.startswith(p)), None)
        value = _value(values[-1])
        if section is not None:
            merged[section] = {**merged.get(section, {}), name: value}
        elif name in SHARED or name in FILE_KEYS:
            merged[name] = value
    if str(merged.get("distributed_type", "NO")).upper() == "MEGATRON_LM":
        raise InputError(f"accelerate launch with Megatron-LM is not read: give {WHAT_TO_READ}")
    return merged


def _prefixed(section: str, values: Mapping[str, Any]) -> Section:
    """A section whose keys have the prefix that the launcher adds where it is missing."""
    prefix = section.removesuffix("config") if section in PREFIXED else ""
    return {
        key if str(key).startswith(prefix.rstrip("_")) else f"{prefix}{key}": value
        for key, value in values.items()
    }


def _value(text: str) -> Any:
    lowered = text.lower()
    if lowered in ("true", "false"):
        return lowered == "true"
    return int(text) if text.isdecimal() and len(text) < 19 else text


def _processes(merged: Mapping[str, Any], *, has_file: bool) -> int | None:
    """The processes of all machines; None where only the machine knows its GPUs."""
    count = _count(merged, "num_processes")
    kind = str(merged.get("distributed_type", "NO" if has_file else "")).upper()
    return 1 if kind == "NO" else count


def _count(merged: Mapping[str, Any], name: str) -> int | None:
    if (value := merged.get(name)) is None:
        return None
    if isinstance(value, bool) or not str(value).isdecimal() or not 0 < int(value) < 10**6:
        raise InputError(f"accelerate launch: {name}={quoted(value)} must be a count, 1 or more")
    return int(value)


def _no_file(options: LauncherOptions) -> tuple[str, ...]:
    if {"mixed_precision", "num_processes"} <= options.given.keys():
        return ()
    return ("accelerate launch has no default_config.yaml, because no --config_file is named",)
