"""A module's record as a file, which calculate --function F --record FILE writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .errors import InputError


def load_record(path: str | Path, key: str) -> dict[str, Any]:
    """The record in a file; `key` is what names the file, for the sentence that refuses it."""
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        why = getattr(error, "strerror", None) or "it is not JSON"
        raise InputError([f"{key} {path}: cannot be read, {why}"]) from None
    if not isinstance(found, dict):
        raise InputError([f"{key} {path}: it is not a module's record; make one with --function"])
    return found
