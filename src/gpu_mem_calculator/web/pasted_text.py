"""Pasted text: a run file or a model's config.json, in JSON, YAML or TOML."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..core.errors import InputError
from ..core.runfile import SECTIONS, read
from ..core.text_data import parse_any_text

WHERE = "what was pasted"


def read_pasted(text: str) -> dict[str, Any]:
    """The run file of a text, and which of the two kinds the text was."""
    data = parse_any_text(text, WHERE)
    if not isinstance(data, Mapping) or not data:
        raise InputError(f"{WHERE} is neither a run file nor a config.json: both are objects")
    if data.keys() <= SECTIONS.keys():
        read(data)
        return {"run": data, "what": "run file"}
    if "model_type" in data or "architectures" in data:
        return {"run": {"model": {"config": data}}, "what": "config.json"}
    unknown = next(key for key in data if key not in SECTIONS)
    without = f"without a model_type {WHERE} is no config.json"
    raise InputError(f"{unknown!r} is not a section of a run file, and {without}")
