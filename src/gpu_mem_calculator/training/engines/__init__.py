"""Training engines: one folder each, named as in a run file; its `engine.py` exposes `ENGINE`,
its `row.py` what is true of it beside its memory, as `ROW`, its `knobs.py` what
is worth turning, its `__init__.py` other spellings.

A folder is imported when its engine is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ...run.registry import folder_aliases, folder_names, folder_shorthands, load_engine

if TYPE_CHECKING:
    from ...run.engine import Engine
    from ...run.engine_row import EngineRow
    from ..knob import Knob, Offer

DEFAULT = "pytorch_ddp"  # of a run that names none
SHARDING = "fsdp"  # proposed to a run whose engine does not shard states


def engine_names() -> tuple[str, ...]:
    """Every engine's name, as in a run file."""
    return folder_names(__name__)


def aliases() -> dict[str, str]:
    """Other spellings of engines, and the engine that each means."""
    return folder_aliases(__name__)


def shorthands() -> dict[str, tuple[str, Mapping[str, Any]]]:
    """Names that say options, too, such as `zero3`: the engine, and its options."""
    return folder_shorthands(__name__)


@cache
def spellings() -> dict[str, str]:
    """Every spelling people use, and the engine it means."""
    return {**{name: name for name in engine_names()}, **aliases()}


def engine(name: str) -> Engine:
    """One engine by its name."""
    return load_engine(__name__, name)


@cache
def engine_row(name: str) -> EngineRow:
    """The row of an engine: what is true of it beside its memory."""
    row: EngineRow = import_module(f"{__name__}.{name}.row").ROW
    return row


@cache
def engine_knobs(name: str) -> tuple[Knob, ...]:
    """What is worth turning in a run of an engine."""
    knobs: tuple[Knob, ...] = import_module(f"{__name__}.{name}.knobs").KNOBS
    return knobs


@cache
def offers(to: str) -> tuple[tuple[str, Offer], ...]:
    """What engines offer to runs of others, by `Offer.to`: the engine, and its offer."""
    every = ((name, import_module(f"{__name__}.{name}.knobs").OFFERS) for name in engine_names())
    return tuple((name, one) for name, found in every for one in found if one.to == to)


def engine_rows() -> dict[str, EngineRow]:
    """Every engine's row by its name."""
    return {name: engine_row(name) for name in engine_names()}


def engines() -> dict[str, Engine]:
    """Every engine by its name."""
    return {name: engine(name) for name in engine_names()}
