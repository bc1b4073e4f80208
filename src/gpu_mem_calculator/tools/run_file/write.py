"""Writes a run as a run file: JSON, YAML or TOML."""

from __future__ import annotations

from typing import Any

from ...runfile.config import RunFile
from ...runfile.program import TRANSLATED
from ...runfile.read import as_dict
from ...runfile.resolve.resolved_run import ResolvedRun
from ..program_section import translation
from ..writing.texts import json_text, toml_text, yaml_text


def run_data(file: RunFile) -> dict[str, Any]:
    """The sections of a run file. Keys that its program means are left out."""
    data: dict[str, Any] = {name: values for name, values in as_dict(file).items() if values}
    if file.program is None:
        return data
    data["program"] = {key: one for key, one in data["program"].items() if one not in ({}, None)}
    meant = translation(file.program, data)
    for name in TRANSLATED:
        keys = getattr(meant, name)
        kept = {key: one for key, one in data.get(name, {}).items() if keys.get(key) != one}
        data[name] = kept
    order = ("model", "program", "training", "parallelism", "engine", "hardware")
    return {name: data[name] for name in order if data.get(name)}


def write_json(file: RunFile, resolved: ResolvedRun) -> str:
    """The text of a run file in JSON."""
    return json_text(run_data(file))


def write_yaml(file: RunFile, resolved: ResolvedRun) -> str:
    """The text of a run file in YAML."""
    return yaml_text(run_data(file))


def write_toml(file: RunFile, resolved: ResolvedRun) -> str:
    """The text of a run file in TOML."""
    return toml_text(run_data(file))
