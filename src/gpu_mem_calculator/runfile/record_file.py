"""Reads a module's record from the file that calculate --function F --record FILE writes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from .text.errors import InputError
from .text.files import MOST_RECORD_BYTES, read_text

if TYPE_CHECKING:
    from pathlib import Path


def load_record(path: str | Path, key: str) -> dict[str, Any]:
    """The record in a file; `key` is the option or key that names the file, for error messages."""
    text = read_text(path, key, most=MOST_RECORD_BYTES)
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        raise InputError(f"{key} {path}: cannot be read, it is not JSON") from None
    if not isinstance(record, dict):
        raise InputError(f"{key} {path}: it is not a module's record; make one with --function")
    return record
