"""Unknown names in a run file whose form is wrong elsewhere, so that one answer has all problems.

Only what can be looked up alone is: a rule between keys would be checked against a default in the
place of the wrong value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .config import ModelConfig
from .find_model.model_source import find_model
from .read import section
from .resolve.card_name import named_card
from .resolve.resolve_inference import find_server
from .resolve.resolve_training import find_engine
from .sections import SECTIONS
from .text.errors import Problems


def _find_offline(model: ModelConfig) -> None:
    """Look a preset or file up; a name of the hub is not asked for."""
    if model.name and "/" not in model.name:
        find_model(model)


# By section: the key that has the name, and how it is looked up.
LOOKUPS: dict[str, tuple[str, Callable[[Any], object]]] = {
    "model": ("name", _find_offline),
    "hardware": ("gpu", named_card),
    "engine": ("type", find_engine),
    "inference": ("engine", find_server),
}


def name_problems(data: Any) -> list[str]:
    """The problems of the names in a run file."""
    found = Problems()
    for name, (key, look_up) in LOOKUPS.items():
        values = data.get(name) if isinstance(data, Mapping) else None
        if not isinstance(values, Mapping) or values.get(key) is None:
            continue
        if name == "model" and len(values) > 1:  # with numbers, the name may be a title
            continue
        alone = Problems().attempt(section, name, SECTIONS[name], {key: values[key]})
        if alone is not None:
            found.attempt(look_up, alone)
    return found
