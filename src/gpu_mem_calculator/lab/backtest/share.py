"""A measured run as its user can send it: sizes, options and versions, and nothing that names a
person, a machine, a path or a model that is not public.

What is kept is what is known: numbers, words that options have, cards and presets of the catalogue,
versions. Everything else is left out. A row is shared only if its prediction stays the same.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from hashlib import sha256
from typing import Any

from msgspec import Struct

from ... import catalog
from ...catalog.cards import find_card
from ...ledger.secrets import hide_forms, hide_random, is_secret
from ...runfile.config import ModelConfig
from ...runfile.find_model.model_source import find_model
from ...runfile.keys.schema import schema
from ...runfile.text.errors import InputError
from ...runfile.text.files import MOST_RUNS_BYTES, read_text
from .rows import GROUPS, KNOWN, ROWS, rows_from
from .score import backtest

WORD_KEYS = frozenset(ROWS["word_keys"])  # whose value is one of a library's own words
VERSIONS = frozenset(ROWS["versions"])  # of the environment
WORD = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,60}")
KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,60}")
PHASE = re.compile(r"[a-z][a-z0-9_.]{0,40}")
VERSION = re.compile(r"\d[\dA-Za-z.+-]{0,30}")
SIZE = re.compile(r"[\d.]+(e\d+|[KMBT])?")
CARD = re.compile(r"(NVIDIA|AMD|Intel|Apple)( [\w()-]{1,20}){1,6}")
ALLOCATOR = re.compile(r"[a-z_]+:[A-Za-z0-9.]+(,[a-z_]+:[A-Za-z0-9.]+)*")
LEFT = object()  # stands for what is left out


class SharedRow(Struct, frozen=True):
    """A reduced row, and the names of the keys that were left out."""

    row: dict[str, Any]
    left_out: tuple[str, ...]


def shared_rows(path: str) -> list[SharedRow]:
    """The rows of a file, reduced; raises where one cannot be, with all reasons at once."""
    text = read_text(path, most=MOST_RUNS_BYTES)
    try:
        rows = [json.loads(line) for line in text.split("\n") if line.strip()]
    except ValueError as error:
        raise InputError(f"{path}: not valid JSON, {error}; write one object a line") from None
    before = backtest(rows_from(rows))
    problems = [f"{one.id} is not shared: {one.why}" for one in before.refused]
    found: list[SharedRow] = []
    for number, row in enumerate(rows, 1):
        if row.get("function") or row.get("record"):
            problems.append(f"line {number} is not shared: its model is a module of its own")
            continue
        found.append(_reduced(row))
    if not problems:
        after = backtest(rows_from([one.row for one in found]))
        problems = [f"line {n} is not shared: {why}" for n, why in _differences(before, after)]
    if problems:
        raise InputError(problems)
    return found


def _differences(before: Any, after: Any) -> Iterator[tuple[int, str]]:
    """Rows whose prediction is another without what was left out."""
    if after.refused:
        yield from (
            (n, f"without its own names {one.why}") for n, one in enumerate(after.refused, 1)
        )
        return
    for number, (old, new) in enumerate(zip(before.rows, after.rows, strict=True), 1):
        if old.metrics != new.metrics:
            yield number, "what would be left out changes its prediction"


def _reduced(data: Mapping[str, Any]) -> SharedRow:
    """A row of what is known."""
    left: list[str] = []
    config = _config(data["config"], left)
    measured = {key: data["measured"].get(key) for key in KNOWN}
    row: dict[str, Any] = {
        "group": _group(config),
        "config": config,
        "rank": int(data.get("rank") or 0),
        "measured": {k: v for k, v in measured.items() if _is_numbers(v)},
        "phases": _phases(data.get("phases") or {}),
        "environment": _environment(data.get("environment") or {}, left),
    }
    for key in ("num_parameters", "rank_parameters"):
        if _is_numbers(data.get(key)):
            row[key] = data[key]
    left += [key for key in data if key not in row and key != "id"]
    left += [f"measured.{key}" for key in data["measured"] if key not in row["measured"]]
    text = json.dumps(row, sort_keys=True)
    named = {"id": f"shared-{sha256(text.encode()).hexdigest()[:12]}", **row}
    return SharedRow(named, tuple(hide_random(hide_forms(one)) for one in left))


def _config(config: Mapping[str, Any], left: list[str]) -> dict[str, Any]:
    """A run file of numbers and known words; a model that is no preset is its shape."""
    found: dict[str, Any] = {}
    for section, value in config.items():
        if section == "limits":  # sentences, without effect on figures
            left.append(section)
            continue
        kept = _kept(section, section, value, left)
        if kept is not LEFT:
            found[section] = kept
    model = config.get("model")
    if isinstance(model, Mapping) and "name" in model and "name" not in found.get("model", {}):
        own = find_model(ModelConfig(**model)).config
        if own is not None:
            shape = _kept("config", "model.config", own, [])
            found["model"] = {**found.get("model", {}), "config": shape}
    return found


def _kept(key: str, path: str, value: Any, left: list[str]) -> Any:
    """A value of a run file, without what is not known; `LEFT` where nothing of it is."""
    if value is None or isinstance(value, bool | int | float):
        if not is_secret(key, value):
            return value
    elif isinstance(value, Mapping):
        known = {name: one for name, one in value.items() if KEY.fullmatch(str(name))}
        left += [f"{path}.*"] * (len(known) < len(value))
        inner = {name: _kept(name, f"{path}.{name}", one, left) for name, one in known.items()}
        return {name: one for name, one in inner.items() if one is not LEFT}
    elif isinstance(value, list):
        items = [_kept(key, path, one, left) for one in value]
        return items if LEFT not in items else LEFT
    elif isinstance(value, str) and _is_known(key, path, value):
        return value
    left.append(path)
    return LEFT


def _is_known(key: str, path: str, value: str) -> bool:
    """Whether a text is a word of an option, a preset, a card or a version."""
    if is_secret(key, value) or hide_random(hide_forms(value)) != value:
        return False
    if path == "model.name":
        return catalog.find("index", value) is not None
    if path == "hardware.gpu":
        return find_card(value) is not None
    if path.startswith("releases.") or key.endswith("version"):
        return VERSION.fullmatch(value) is not None
    if path == "model.num_parameters":
        return SIZE.fullmatch(value) is not None
    if key == "pytorch_alloc_conf":
        return ALLOCATOR.fullmatch(value) is not None
    if path == "program.tool":
        return WORD.fullmatch(value) is not None
    return value in _words() or (key in WORD_KEYS and WORD.fullmatch(value) is not None)


@cache
def _words() -> frozenset[str]:
    """The words that keys of a run file may have."""
    found: set[str] = set()

    def walk(data: Any) -> None:
        if isinstance(data, dict):
            found.update(one for one in data.get("enum", ()) if isinstance(one, str))
            for value in data.values():
                walk(value)
        elif isinstance(data, list):
            for value in data:
                walk(value)

    walk(schema())
    return frozenset(found)


def _group(config: Mapping[str, Any]) -> str:
    """What the run is of."""
    for section, key in (("inference", "engine"), ("program", "tool"), ("engine", "type")):
        name = (config.get(section) or {}).get(key)
        if isinstance(name, str):
            return name
    return "training"


def _is_numbers(value: Any) -> bool:
    """Whether a measured value is a number, or a list of them or of objects of them."""
    if isinstance(value, list):
        return all(map(_is_numbers, value))
    if isinstance(value, Mapping):
        return all(KEY.fullmatch(str(k)) and _is_numbers(v) for k, v in value.items())
    return isinstance(value, bool | int | float)


def _phases(phases: Mapping[str, Any]) -> dict[str, Any]:
    """The peaks of phases whose names are those of a job."""
    return {
        name: {key: one for key, one in phase.items() if type(one) is int and KEY.fullmatch(key)}
        for name, phase in phases.items()
        if PHASE.fullmatch(name) and isinstance(phase, Mapping)
    }


def _environment(environment: Mapping[str, Any], left: list[str]) -> dict[str, Any]:
    """Versions, the card and how ranks talk."""
    found: dict[str, Any] = {}
    for key, value in environment.items():
        text = value if isinstance(value, str) else ""
        if (
            (key in VERSIONS and VERSION.fullmatch(text))
            or (key == "gpu" and CARD.fullmatch(text))
            or (key == "process_group" and text in GROUPS)
            or (key == "alloc_conf" and ALLOCATOR.fullmatch(text))
            or (key == "steps" and type(value) is int)
        ):
            found[key] = value
        else:
            left.append(f"environment.{key}")
    return found
