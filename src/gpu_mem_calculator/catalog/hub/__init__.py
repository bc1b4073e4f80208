"""Models from a file, a folder, the Hugging Face hub, a bucket or an address.

Headers are read, never weights, and no code of a repository is run.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from typing import Any

from ..kept import read_table


@cache
def tables(module: str) -> Mapping[str, Any]:
    """The tables that `tables.toml` beside this file has for a module of the folder."""
    found: Mapping[str, Any] = read_table(f"{os.path.dirname(__file__)}/tables.toml")[module]
    return found
