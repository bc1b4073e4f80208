"""One file per Hugging Face family: a config.json becomes an `Arch`.

A family file exposes `FAMILIES`, a table from `model_type` to the function that reads it. Files are
discovered by themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from pkgutil import get_data, iter_modules
from typing import Any

from ..model.arch import Arch
from .config import Config

Reader = Callable[[Config], Arch]


class UnknownFamilyError(ValueError):
    """A `model_type` that no family file reads."""


@cache
def _modules() -> tuple[str, ...]:
    return tuple(sorted(module.name for module in iter_modules(__path__)))


@cache
def _table(module: str) -> dict[str, Reader]:
    table: dict[str, Reader] = getattr(import_module(f"{__name__}.{module}"), "FAMILIES", {})
    return table


@cache
def _text(module: str) -> str:
    return (get_data(__name__, f"{module}.py") or b"").decode("utf-8")


def families() -> dict[str, Reader]:
    """Every known `model_type` and its reader."""
    return {name: reader for module in _modules() for name, reader in _table(module).items()}


def _reader(model_type: str) -> Reader | None:
    """The reader of a `model_type`; only files that have its name are loaded."""
    order = sorted(_modules(), key=lambda m: not model_type.startswith(m.rstrip("0123456789")))
    named = (m for m in order if f'"{model_type}"' in _text(m))
    return next((_table(m)[model_type] for m in named if model_type in _table(m)), None)


def read_config(config: Mapping[str, Any]) -> Arch:
    """The architecture a config.json describes; missing keys take the family's own defaults."""
    model_type = str(config.get("model_type", ""))
    reader = _reader(model_type)
    if reader is None and isinstance(config.get("text_config", config.get("llm_config")), Mapping):
        from .multimodal import read_inside  # an unknown model that sees: its text model is known

        return read_inside(Config(config))
    if reader is None:
        import difflib

        near = difflib.get_close_matches(model_type, families(), n=1, cutoff=0.0)
        raise UnknownFamilyError(
            f"model_type={model_type!r} is not a known family; the nearest is {near[0]!r}"
        )
    return reader(Config(config))
