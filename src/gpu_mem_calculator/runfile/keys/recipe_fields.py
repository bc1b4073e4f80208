"""Recipes as data for a form: the settings for each engine, or for one that has the recipe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...training.engines import DEFAULT, engine_names
from .recipes import RECIPES, TITLES, WORDS, recipe_settings

ALL_WEIGHTS = "every weight is trained"


def recipes(having: Mapping[str, Mapping[str, Any] | None]) -> list[dict[str, Any]]:
    """Every recipe; `having` has the engines of each key, None where every engine has it."""
    return [
        {
            "name": name,
            "title": TITLES[name],
            "engines": {one: _choice(name, one, having) for one in engine_names()},
        }
        for name in RECIPES
    ]


def _choice(
    name: str, engine: str, having: Mapping[str, Mapping[str, Any] | None]
) -> dict[str, Any]:
    """The engine that a recipe runs on when `engine` is chosen, and its settings there."""
    for one in (engine, DEFAULT):
        settings = recipe_settings(name, engine=one)
        engines = (having[key] for key in settings)
        if all(known is None or one in known for known in engines):
            break
    words = [WORDS[key][value] for key, value in settings.items() if key in WORDS]
    return {"engine": one, "settings": settings, "meaning": ", ".join(words) or ALL_WEIGHTS}
