"""A run file in our own names: other people's keys, values and counts are replaced."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from functools import cache
from typing import Any

from .config import INNER
from .other_names import DTYPE, Settings, default_settings, translated, translated_value
from .sections import SECTIONS, key_types, parts
from .text.counts import as_count
from .text.errors import InputError, quoted

LORA = "training.lora"
PRECISION = "training.precision"
NODE_MEMORY = "hardware.node_memory_gb"
PROGRAM = "program"  # what is in it has the tool's own names
# Sections of a run of each kind; a key without a section is looked for in these.
TRAINED = ("model", "training", "parallelism", "engine", "hardware")
SERVED = ("inference", "model", "hardware")


def own_names(data: Any) -> tuple[Any, list[str]]:
    """A run file's data in our own names, and the problems that were met."""
    if not isinstance(data, Mapping) or not data.keys() & SECTIONS.keys():
        return data, []
    own: dict[str, Any] = {}
    foreign: list[tuple[str, Any]] = []
    for name, values in data.items():
        named = name in ("model", "engine") and isinstance(values, str)  # by its name alone
        if name in SECTIONS and isinstance(values, Mapping):
            own[name] = _section(str(name), values, foreign)
        elif (name in SECTIONS and not named) or name == PROGRAM:
            own[name] = values
        else:
            foreign.append((str(name), values))
    return own, list(_add_foreign(own, foreign, serving=data.get("inference") is not None))


def _section(where: str, values: Mapping[Any, Any], foreign: list[tuple[str, Any]]) -> Settings:
    """A section's own keys with their values; others are added to `foreign`."""
    own: Settings = {}
    for key, value in values.items():
        path = f"{where}.{key}"
        if where == "training" and key in INNER and isinstance(value, Mapping):
            own[key] = _section(path, value, foreign)
        elif not is_own(path):
            foreign.append((path, value))
        elif not isinstance(value, str):
            own[key] = value
        else:
            meaning = _own_value(path, value)
            own[key] = meaning.pop(path, value)
            foreign += meaning.items()
    return own


def _add_foreign(
    own: dict[str, Any], foreign: list[tuple[str, Any]], *, serving: bool
) -> list[str]:
    """Add what other people's names mean; returns a sentence for each that is not possible."""
    problems = []
    for path, value in foreign:
        meaning = {path: value} if is_own(path) else translated(path, value, serving=serving)
        if isinstance(meaning, str):
            problems.append(meaning)
            continue
        for key, wanted in ({path: value} if meaning is None else meaning).items():
            given, wanted = _get(own, key), _counted_value(key, wanted)
            if given is not None and given != wanted and value is not None:
                fix = "leave one of them out"
                problems.append(f"{path}={quoted(value)} contradicts {key}={quoted(given)}; {fix}")
            else:
                _put(own, key, wanted)
    for path, value in foreign:
        _add_defaults(own, path, value)
    return problems


def with_setting(data: dict[str, Any], path: str, value: Any) -> None:
    """Set a key of a run file's data, in place; the name may be another's, or lack its section."""
    serving = data.get("inference") is not None
    path = path if "." in path else _with_section(path, serving=serving)
    for key, wanted in _meaning(path, value, serving=serving).items():
        _put(data, key, _counted_value(key, wanted))
        if wanted is not None:
            _settle(data, key)
        if key == NODE_MEMORY:  # it no longer stands where it was read
            data["hardware"].pop("node_memory_read_from", None)
    _add_defaults(data, path, value)


def _settle(data: dict[str, Any], key: str) -> None:
    """Take away what a command left open and this key says now."""
    if isinstance(data.get("limits"), list):
        data["limits"] = [
            one
            for one in data["limits"]
            if not (isinstance(one, Mapping) and f"{one.get('settle')}".startswith(f"--set {key}="))
        ]


def _meaning(path: str, value: Any, *, serving: bool) -> Settings:
    """Our keys and values for one setting; an unknown key stays, and is refused when it is read."""
    if is_own(path):
        return _own_value(path, value)
    if path.startswith(f"{PROGRAM}."):
        return {path: value}
    meaning = translated(path, value, serving=serving)
    if isinstance(meaning, str):
        raise InputError(meaning)
    if meaning is None and "." not in path:
        raise InputError(f"--set {path}={value} must be section.key=value")
    return {path: value} if meaning is None else meaning


def is_setting(name: str) -> bool:
    """Whether `--set NAME=VALUE` means something in a training run."""
    own = is_own(_with_section(name, serving=False))
    return own or isinstance(translated(name, True), dict)


def _with_section(name: str, *, serving: bool) -> str:
    """A key with the section that it belongs to, where only one section of the run has it."""
    sections = [one for one in (SERVED if serving else TRAINED) if is_own(f"{one}.{name}")]
    return f"{sections[0]}.{name}" if len(sections) == 1 else name


def _own_value(path: str, value: Any) -> Settings:
    if value is None:
        return {path: None}
    return translated_value(path, _counted_value(path, value))


def _counted_value(path: str, value: Any) -> Any:
    """A value; for a key that counts, a text such as 128k as its number."""
    return as_count(path, value) if is_own(path) and _counted(path) else value


def _add_defaults(data: dict[str, Any], path: str, value: Any) -> None:
    """Add what a name says where no other key of the run does."""
    if not isinstance(value, bool) or is_own(path):
        return
    for key, wanted in default_settings(path.rpartition(".")[2], value).items():
        precise = key == DTYPE and _get(data, PRECISION) is not None
        if _get(data, key) is None and not precise:
            _put(data, key, wanted)


@cache
def is_own(path: str) -> bool:
    """Whether a key, as `section.key`, is one of a run file."""
    return _type(path) is not None


@cache
def _counted(path: str) -> bool:
    """Whether a key takes a whole number and no text."""
    kinds = [typing.get_args(part)[0] for part in parts(_type(path)) if typing.get_args(part)]
    return int in kinds and str not in kinds


def _type(path: str) -> Any:
    section, _, key = path.partition(".")
    inner, dot, last = key.partition(".")
    if section == "training" and dot and inner in INNER:
        return key_types(INNER[inner]).get(last)
    return key_types(SECTIONS[section]).get(key) if section in SECTIONS else None


def _get(data: Mapping[str, Any], path: str) -> Any:
    value: Any = data
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _put(data: dict[str, Any], path: str, value: Any) -> None:
    *sections, last = path.split(".")
    target = data
    for key in sections:
        inner = target.get(key)
        target[key] = dict(inner) if isinstance(inner, Mapping) else {}
        target = target[key]
    target[last] = value
