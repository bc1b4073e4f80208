"""What people paste: a run file or a model's config.json, in JSON, YAML or TOML."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..core.errors import InputError
from ..core.runfile import SECTIONS, parse_text, read

ENDINGS = (".json", ".toml", ".yaml")
WHERE = "what was pasted"


def pasted(text: str) -> dict[str, Any]:
    """The run file that a text means, and what the text was."""
    data = _parsed(text)
    if not isinstance(data, Mapping) or not data:
        raise InputError([f"{WHERE} is neither a run file nor a config.json: both are objects"])
    if data.keys() <= SECTIONS.keys():
        read(data)
        return {"run": data, "what": "run file"}
    if "model_type" in data or "architectures" in data:
        return {"run": {"model": {"config": data}}, "what": "config.json"}
    strange = next(key for key in data if key not in SECTIONS)
    raise InputError([f"{strange!r} is not a section of a run file, and without a model_type "
                      f"{WHERE} is no config.json"])  # fmt: skip


def _parsed(text: str) -> Any:
    """By whichever notation reads it; the complaint is about the one it looks like."""
    if text.lstrip().startswith("{"):
        return parse_text(text, ".json", WHERE)
    for ending in (".toml", ".yaml"):
        try:
            return parse_text(text, ending, WHERE)
        except InputError as error:
            problem = error
    raise problem
