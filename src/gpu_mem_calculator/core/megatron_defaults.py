"""Megatron options whose default depends on who builds the model: Megatron-LM's script, which a
run file means, or megatron-core's API, which programs that measure call themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..engines import spellings
from ..engines.megatron_lm.options import LIBRARY, OPTIONS

PACKAGE = ("megatron-core", "megatron_core", "mcore")  # its names in a row's environment


def as_script(config: Mapping[str, Any]) -> dict[str, Any]:
    """The run file of a measured job, with the options stated that the job was given."""
    return _with(config, {key: OPTIONS[key] for key in LIBRARY})


def as_measured(config: Mapping[str, Any], environment: Mapping[str, Any]) -> dict[str, Any]:
    """The run file of a row; what it leaves out has megatron-core's default where that ran."""
    return _with(config, LIBRARY if any(name in environment for name in PACKAGE) else {})


def _with(config: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """A run file of Megatron-LM with these options, where it does not say others."""
    engine = config.get("engine")
    kind = str(engine.get("type") or "") if isinstance(engine, Mapping) else ""
    if spellings().get(kind.lower()) != "megatron_lm" or not defaults:
        return dict(config)
    given = {key: value for key, value in dict(engine or {}).items() if value is not None}
    return {**config, "engine": {**defaults, **given}}
