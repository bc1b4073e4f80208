"""Completes a config that has only the sizes of a published model with that model's other keys.

Reports and tables give layers, widths and heads, not the whole config.json. Where these are a
preset's, a server loaded that model, with its positions, windows and vision tower.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from msgspec.structs import replace

from ... import catalog
from ...run.weights import FormatError, find_format
from ..config import ModelConfig

POSITIONS = "max_position_embeddings"
HEADS = ("num_attention_heads", "num_key_value_heads")
SIZES = ("num_hidden_layers", "hidden_size", *HEADS, "intermediate_size", "vocab_size")
SEPARATE_KEYS = ("model_type", "quantization_config", "text_config")  # filled in separately
Config = Mapping[str, Any]


def complete_config(
    section: ModelConfig, length: int | None, quantization: str | None
) -> tuple[ModelConfig, tuple[str, ...]]:
    """The section with its config completed, and a sentence that says so.

    Of several presets with the same sizes, those are used that have positions for `length` tokens
    and, if there are any, that are published in the named quantization; keys on which they differ
    are not filled in.
    """
    given = section.config
    if not _has_only_sizes(given):
        return section, ()
    assert given is not None
    presets = [p for p in _presets(str(given["model_type"])) if _same_sizes(given, p[1])]
    presets = [p for p in presets if _text_config(p[1]).get(POSITIONS, 0) >= (length or 0)]
    if not presets:
        return section, ()
    stored = [p for p in presets if _names_format(quantization, p[1].get("quantization_config"))]
    presets = stored or presets
    config = _fill_config(given, [config for _, config in presets], keep=bool(stored))
    if config == given:
        return section, ()
    sentence = f"model.config leaves out what {presets[0][0]} has, whose sizes it gives"
    return replace(section, config=config), (sentence,)


def _has_only_sizes(config: Config | None) -> bool:
    """Whether a config has a model's sizes but no positions, which every published config has."""
    return (
        config is not None
        and isinstance(config.get("model_type"), str)
        and POSITIONS not in config
        and "text_config" not in config
        and all(isinstance(config.get(key), int) for key in SIZES)
    )


@cache
def _presets(model_type: str) -> tuple[tuple[str, Config], ...]:
    known = ((str(row["title"]), catalog.row_config(row)) for row in catalog.rows("index"))
    return tuple((title, one) for title, one in known if one.get("model_type") == model_type)


def _text_config(config: Config) -> Config:
    """The part of a config that describes the text model."""
    inner = config.get("text_config")
    return inner if isinstance(inner, Mapping) else config


def _same_sizes(given: Config, config: Config) -> bool:
    """Whether sizes and all other plain values that both configs have are equal."""
    text = _text_config(config)
    if any(text.get(key, given[key]) != given[key] for key in SIZES):
        return False
    shared = [key for key in given if key in text and key not in SEPARATE_KEYS]
    return all(given[key] == text[key] for key in shared if not isinstance(given[key], dict | list))


def _fill_config(given: Config, presets: Sequence[Config], *, keep: bool) -> dict[str, Any]:
    """The given keys over those on which all presets agree; `keep`: take their format as well."""
    first = presets[0]
    text = _agreed([_text_config(preset) for preset in presets])
    if "text_config" not in first:
        filled = {k: v for k, v in text.items() if k not in SEPARATE_KEYS} | dict(given)
    else:
        agreed = _agreed(presets)
        outer = {key: value for key, value in agreed.items() if key not in SEPARATE_KEYS}
        inner = {key: value for key, value in given.items() if key not in (*SEPARATE_KEYS, *outer)}
        outer |= {k: v for k, v in given.items() if k in outer or k == "model_type"}
        filled = {**outer, "text_config": {**text, **inner}}
    if keep and "quantization_config" not in given:
        filled["quantization_config"] = first["quantization_config"]
    return filled


def _agreed(configs: Sequence[Config]) -> dict[str, Any]:
    """The keys of the first config on whose values all agree."""
    first = configs[0].items()
    return {k: v for k, v in first if all(other.get(k) == v for other in configs)}


def _names_format(quantization: str | None, stored: Config | None) -> bool:
    """Whether a quantization's name means the format in which a checkpoint is stored."""
    if quantization in (None, "none") or not stored:
        return False
    try:
        return bool(find_format(str(quantization), stored))
    except FormatError:
        return False
