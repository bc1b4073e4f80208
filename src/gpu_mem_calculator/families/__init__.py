"""One file per Hugging Face family: a config.json becomes an `Arch`.

A family file exposes `FAMILIES`, a table from `model_type` to the function that reads it. This
page finds the files by itself.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from ..model.arch import Arch

Reader = Callable[[Mapping[str, Any]], Arch]


class UnknownFamily(ValueError):
    """A `model_type` that no family file reads."""


@cache
def families() -> dict[str, Reader]:
    """Every known `model_type` and its reader."""
    table: dict[str, Reader] = {}
    for module in iter_modules(__path__):
        found = import_module(f"{__name__}.{module.name}")
        table.update(getattr(found, "FAMILIES", {}))
    return table


def read_config(config: Mapping[str, Any]) -> Arch:
    """The architecture a config.json describes; missing keys take the family's own defaults."""
    model_type = str(config.get("model_type", ""))
    reader = families().get(model_type)
    if reader is None:
        near = difflib.get_close_matches(model_type, families(), n=1, cutoff=0.0)
        raise UnknownFamily(
            f"model_type={model_type!r} is not a known family; the nearest is {near[0]!r}"
        )
    return reader(config)
