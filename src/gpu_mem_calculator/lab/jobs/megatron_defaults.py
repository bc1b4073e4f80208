"""Megatron options whose default differs between Megatron-LM's training script, which a run file
describes, and megatron-core's API, which measured programs call.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...training.engines import spellings
from ...training.engines.megatron_lm.options import LIBRARY, OPTIONS

PACKAGE = ("megatron-core", "megatron_core", "mcore")  # names in the environment of a measured run


def with_script_defaults(config: Mapping[str, Any]) -> dict[str, Any]:
    """The run file of a measured job, with the script's defaults, which the job was run with."""
    return _with(config, {key: OPTIONS[key] for key in LIBRARY})


def with_measured_defaults(
    config: Mapping[str, Any], environment: Mapping[str, Any]
) -> dict[str, Any]:
    """The run file of a measured run, with megatron-core's defaults where that package ran."""
    return _with(config, LIBRARY if any(name in environment for name in PACKAGE) else {})


def _with(config: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """A Megatron-LM run file with these defaults for options that it leaves out."""
    engine = config.get("engine")
    kind = str(engine.get("type") or "") if isinstance(engine, Mapping) else ""
    if spellings().get(kind.lower()) != "megatron_lm" or not defaults:
        return dict(config)
    given = {key: value for key, value in dict(engine or {}).items() if value is not None}
    return {**config, "engine": {**defaults, **given}}
