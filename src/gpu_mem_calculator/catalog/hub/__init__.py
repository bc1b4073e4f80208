"""Models from a file, a folder, the Hugging Face hub, a bucket or an address.

Headers are read, never weights, and no code of a repository is run.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any


@cache
def tables(module: str) -> Mapping[str, Any]:
    """The tables that `tables.toml` beside this file has for a module of the folder."""
    import tomllib
    from pathlib import Path

    text = Path(__file__).with_name("tables.toml").read_text(encoding="utf-8")
    found: Mapping[str, Any] = tomllib.loads(text)[module]
    return found
