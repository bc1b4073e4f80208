"""The run file's keys as data for a form: names, meanings, bounds, choices and defaults.

Recipes as data for a form: the settings for each engine, or for one that has the recipe.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping
from functools import cache
from typing import Any

import msgspec
from msgspec import Struct

from ... import __version__
from ...serving import ALIASES as SERVER_ALIASES
from ...serving import servers
from ...serving.transformers.checks import ONE_VALUE
from ...training.engines import DEFAULT, engine_names, engines
from ...training.engines import aliases as engine_aliases
from ..config import INNER
from ..field_types import Object, Parameters
from ..read import SECTIONS, key_types, parts
from ..resolve.resolve_training import AXES
from .allowed_values import AllowedValue, accepts, choices
from .keys import defaults as shared_defaults
from .keys import rows
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


LARGE = 10**9  # a whole number that may be larger is shown as a size
TRAINING, SERVING = "training", "serving"
SECTION_TITLES = {"engine": "framework", "inference": "serving"}  # others have their own name
SECTION_MODE = {
    **dict.fromkeys(("training", "parallelism", "engine"), TRAINING),
    **{"model": "both", "inference": SERVING, "hardware": "both"},
}
# A bound's name in a form, the widest of several, and msgspec's name.
BOUNDS = (
    ("minimum", min, "ge"),
    ("maximum", max, "le"),
    ("above", min, "gt"),
    ("below", max, "lt"),
)
# Of a number or a flag; words, and names that may be objects too, are text.
KINDS = {int: "count", float: "number", bool: "flag", str: "text"}


class RunFileField(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A key of a run file.

    - `kind`: count, size (a count that may be 0 or very large), number, flag, choice, text, list,
      object or parameters (`"7B"`); `open`: other values than `choices` are taken, too
    - `minimum`, `maximum`: bounds that may be reached; `above`, `below`: those that may not
    - `defaults`: of a key that not every engine has, the default in each that has it; of the
      others `default`
    """

    path: str
    section: str
    key: str
    label: str
    meaning: str
    kind: str
    level: str
    choices: tuple[AllowedValue, ...] = ()
    open: bool = False
    minimum: float | None = None
    maximum: float | None = None
    above: float | None = None
    below: float | None = None
    defaults: dict[str, Any] | None = None
    default: Any = None


def fields() -> list[RunFileField]:
    """Every key of every section, in the order of the sections; keys of objects in it follow it.

    lora.r has no default, because giving it adds the adapter.
    """
    return list(_fields())


@cache
def _fields() -> tuple[RunFileField, ...]:
    entries = []
    for section, struct in SECTIONS.items():
        for key, kind in key_types(struct).items():
            entries.append(_field(section, key, kind, shared_defaults().get(f"{section}.{key}")))
            for inner, type_ in key_types(INNER[key]).items() if key in INNER else ():
                default = None if inner == "r" else getattr(INNER[key](), inner)
                entries.append(_field(section, f"{key}.{inner}", type_, default))
    return tuple(entries)


def _field(section: str, key: str, kind: Any, default: Any) -> RunFileField:
    path = f"{section}.{key}"
    row = rows()[path]
    defaults = _defaults(path, section, key, default)
    offered = choices(path, kind, defaults)
    name = _kind(kind)
    if offered and not row.open and name != "list":
        name = "choice"
    return RunFileField(
        path=path,
        section=section,
        key=key,
        label=row.label,
        meaning=row.meaning,
        kind=name,
        level=row.level,
        choices=offered,
        open=row.open,
        defaults=defaults,
        default=default if defaults is None else None,
        **({} if offered else _bounds(kind)),
    )


def _defaults(path: str, section: str, key: str, default: Any) -> dict[str, Any] | None:
    """The default in each engine that has the key; None where every engine has it."""
    row = rows()[path]
    if path in ("engine.type", "inference.engine"):
        return None
    if section == "engine":
        having = {name: one for name, one in engines().items() if key in one.options}
        return {
            name: one.options[key]
            for name, one in having.items()
            if not row.some_engines or accepts(name, path, row.probe)
        }
    if section == "inference":
        return {
            name: one.options[key]
            for name, one in servers().items()
            if key in one.options and not (one.serve is None and key in ONE_VALUE)
        }
    axis = next((axis for axis, name in AXES.items() if name == key), None)
    if section == "parallelism" and axis:
        return {name: 1 for name, one in engines().items() if axis in one.axes}
    if row.some_engines:
        return {name: default for name in engine_names() if accepts(name, path, row.probe)}
    return None


def _kind(kind: Any) -> str:
    """The kind of input that a form shows for a type (see `RunFileField.kind`)."""
    if any(part in (Object, *INNER.values()) for part in parts(kind)):
        return "object"
    names = []
    for part in parts(kind):
        base = typing.get_args(part)[0] if hasattr(part, "__metadata__") else part
        if part == Parameters:
            return "parameters"
        if typing.get_origin(base) is list:
            return "list"
        names.append(KINDS.get(base, "text"))
    if names[0] == "count" and (_bounds(kind).get("maximum") or 0) > LARGE:
        return "size"
    return names[0]


def _bounds(kind: Any) -> dict[str, float]:
    """The bounds of a type; of several alternatives, the widest."""
    metas = [
        meta
        for part in parts(kind)
        for meta in getattr(part, "__metadata__", ())
        if isinstance(meta, msgspec.Meta)
    ]
    widest: dict[str, float] = {}
    for name, pick, attribute in BOUNDS:
        bounds = [b for meta in metas if (b := getattr(meta, attribute)) is not None]
        if bounds:
            widest[name] = pick(bounds)
    return widest


@cache
def form() -> dict[str, Any]:
    """Sections, fields, engines and recipes as plain data: a form without cards and presets."""
    sections = [
        {"name": name, "title": SECTION_TITLES.get(name, name), "of": SECTION_MODE[name]}
        for name in SECTIONS
    ]
    return {
        "sections": sections,
        "fields": msgspec.to_builtins(_fields()),
        "engines": [*_engines(TRAINING), *_engines(SERVING)],
        "version": __version__,
        "recipes": recipes({one.path: one.defaults for one in _fields()}),
    }


def _engines(kind: str) -> list[dict[str, Any]]:
    """Engines with their aliases and the axes of parallelism that they have."""
    every = engines() if kind == TRAINING else servers()
    aliases = engine_aliases() if kind == TRAINING else SERVER_ALIASES
    rows: list[dict[str, Any]] = []
    for name, one in every.items():
        options = () if one.serve is None else one.options
        axes = one.axes if kind == TRAINING else {a for a, key in AXES.items() if key in options}
        row: dict[str, Any] = {"name": name, "title": one.title, "kind": kind}
        row["axes"] = [axis for axis in AXES if axis in axes]
        row["aliases"] = [alias for alias, meant in aliases.items() if meant == name]
        rows.append(row)
    return rows
