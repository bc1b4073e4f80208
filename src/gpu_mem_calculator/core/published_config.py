"""A config with the few sizes of a published model: what it leaves out is as published.

Reports and tables give layers, widths and heads, not the whole config.json. Where these are a
preset's, a server loaded that model: its positions, windows and vision tower, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from msgspec.structs import replace

from .. import catalog
from ..weights import FormatError, scheme
from .models import ModelConfig

POSITIONS = "max_position_embeddings"
SIZES = ("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads",
         "intermediate_size", "vocab_size")  # fmt: skip
ASIDE = ("model_type", "quantization_config", "text_config")  # not filled in like the others
Config = Mapping[str, Any]


def completed(
    section: ModelConfig, length: int | None, quantization: str | None
) -> tuple[ModelConfig, tuple[str, ...]]:
    """The section with what its config leaves out, and a sentence that says so.

    Of several models with the same sizes, those count whose positions hold `length` and that are
    published in the format that is named, if any is, and what they agree on.
    """
    given = section.config
    if not _bare(given):
        return section, ()
    assert given is not None
    found = [
        (title, config)
        for title, config in _presets(str(given["model_type"]))
        if _agrees(given, config) and _text(config).get(POSITIONS, 0) >= (length or 0)
    ]
    if not found:
        return section, ()
    stored = [one for one in found if _named(quantization, one[1].get("quantization_config"))]
    found = stored or found
    made = _filled(given, [config for _, config in found], keep=bool(stored))
    if made == given:
        return section, ()
    said = f"model.config leaves out what {found[0][0]} has, whose sizes it gives"
    return replace(section, config=made), (said,)


def _bare(config: Config | None) -> bool:
    """Whether it has a model's sizes, and not what every published config has."""
    return (config is not None and isinstance(config.get("model_type"), str)
            and POSITIONS not in config and "text_config" not in config
            and all(isinstance(config.get(key), int) for key in SIZES))  # fmt: skip


@cache
def _presets(model_type: str) -> tuple[tuple[str, Config], ...]:
    rows = (catalog.find("index", name) for name in catalog.names("index"))
    known = ((str(row["title"]), catalog.row_config(row)) for row in rows if row is not None)
    return tuple((title, one) for title, one in known if one.get("model_type") == model_type)


def _text(config: Config) -> Config:
    """The text model's part."""
    inner = config.get("text_config")
    return inner if isinstance(inner, Mapping) else config


def _agrees(given: Config, config: Config) -> bool:
    """The sizes are the same, and so is all else that both say in a word or a number."""
    text = _text(config)
    if any(text.get(key, given[key]) != given[key] for key in SIZES):
        return False
    both = ((value, text[key]) for key, value in given.items() if key in text and key not in ASIDE)
    return all(one == other for one, other in both if not isinstance(one, dict | list))


def _filled(given: Config, found: Sequence[Config], *, keep: bool) -> dict[str, Any]:
    """What is given, over what all agree on; `keep` says that the format is theirs, too."""
    first = found[0]
    text = {key: value for key, value in _text(first).items()
            if all(_text(other).get(key) == value for other in found)}  # fmt: skip
    if "text_config" not in first:
        made = {k: v for k, v in text.items() if k not in ASIDE} | dict(given)
    else:
        around = {key: value for key, value in first.items() if key not in ASIDE
                  and all(other.get(key) == value for other in found)}  # fmt: skip
        own = {key: value for key, value in given.items() if key not in (*ASIDE, *around)}
        made = {**around, **{k: v for k, v in given.items() if k in around or k == "model_type"},
                "text_config": {**text, **own}}  # fmt: skip
    if keep and "quantization_config" not in given:
        made["quantization_config"] = first["quantization_config"]
    return made


def _named(quantization: str | None, stored: Config | None) -> bool:
    """Whether a name is that of a checkpoint's own format."""
    if quantization in (None, "none") or not stored:
        return False
    try:
        return bool(scheme(str(quantization), stored))
    except FormatError:
        return False
