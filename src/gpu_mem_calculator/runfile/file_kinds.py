"""Recognises files that are not run files by their keys: a model's config.json, other programs'."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .other_names import tables, translated, translated_value
from .sections import SECTIONS
from .text.errors import InputError

MODEL_KEYS = ("model_type", "architectures")  # of a config.json
TOOL_KEYS = ("base_model",)  # of files that may have a model_type, too: Axolotl's
BESIDE = {"program", "limits", "releases", "notes"}  # what a run file has beside its sections
SAME_NAMES = ("gradient_accumulation_steps", "optimizer")  # names of `training`, too
MODEL = "model.name"
MODEL_NAMES = ("base_model_name_or_path", "_name_or_path")
MOST_KEYS = 1000  # of one section
MOST_WORDS = 250  # characters of the settings in a suggested command


def is_run_file(data: Any) -> bool:
    """Whether data has a section of a run file; other tools have such keys with plain values."""
    if not isinstance(data, Mapping):
        return False
    return any(isinstance(data.get(name), Mapping) for name in SECTIONS)


def is_model_config(data: Any) -> bool:
    """Whether data is a model's config.json."""
    return (
        isinstance(data, Mapping)
        and not data.keys() & SECTIONS.keys()
        and any(key in data for key in MODEL_KEYS)
        and not any(key in data for key in TOOL_KEYS)
    )


def as_run_file(data: Any, where: str = "this") -> Any:
    """A run file's data; a bare config.json is its model. Other programs' files are refused."""
    if is_model_config(data):
        return {"model": {"config": data}}
    _check_keys(data, where)
    program = _program(data)
    if program:
        from shlex import join

        command = join(["gpu-mem-calc", "quick", *_words(data)])
        raise InputError(f"{where} is {program}, which is not read; try {command}")
    return data


def _check_keys(data: Any, where: str) -> None:
    """Raise where a file or a section has more keys than any of them knows."""
    sections = data.values() if isinstance(data, Mapping) else ()
    for one in (data, *sections):
        if isinstance(one, Mapping) and len(one) > MOST_KEYS:
            raise InputError(f"{where} is not a run file: it has {len(one):,} keys in one section")


def _program(data: Any) -> str:
    """The program whose file the data is; empty where it is a run file or not recognised."""
    if not isinstance(data, Mapping) or data.get("zero_optimization") is not None:
        return ""
    own = data.keys() & SECTIONS.keys()
    if not data.keys() - own - BESIDE:
        return ""
    for title, keys in tables()["programs"].items():
        if any(key in data for key in keys) and (not own or "tokenizer" in keys):
            return title
    return ""


def _words(data: Mapping[str, Any]) -> Iterator[str]:
    """The model and the settings of another program's file, as words of a command line."""
    settings = dict(_settings(data))
    names = (settings.pop(MODEL, None), *(data.get(key) for key in MODEL_NAMES), "MODEL")
    yield next(name for name in names if isinstance(name, str) and name)
    length = 0
    for key, value in settings.items():
        length += len(f"--set {key}={value} ")
        if length < MOST_WORDS:
            yield from ("--set", f"{key}={value}")


def _settings(data: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Our keys for the keys of another program that have one."""
    engines, kind = tables()["distributed_types"], str(data.get("distributed_type"))
    if kind in engines:
        yield "engine.type", engines[kind]
    for name, value in data.items():
        if name in SAME_NAMES and isinstance(value, int | str):
            found: Any = translated_value(f"training.{name}", value)
        else:
            found = translated(str(name), value)
        for key, one in found.items() if isinstance(found, dict) else ():
            if isinstance(one, int | str):
                yield key, str(one).lower() if isinstance(one, bool) else one
