"""Stacks that mix attention with mixers of a fixed state: which layer is which."""

from __future__ import annotations

from collections.abc import Sequence

from .config import Config, ConfigError
from .windows import FULL

LINEAR, HYBRID = "linear_attention", "hybrid"
# Words of older configs (transformers 5.17 configuration_utils.py _LEGACY_LAYER_TYPE_REMAP).
OLD_WORDS = {"conv": LINEAR, "mamba": LINEAR, "mamba2": LINEAR, "attention": FULL}


def mixed_types(
    config: Config, key: str, layers: int, usual: Sequence[str], known: Sequence[str] = ()
) -> list[str]:
    """One word a layer, in today's words."""
    words = config.per_layer(key, layers, list(usual))
    types = [OLD_WORDS.get(word, word) if isinstance(word, str) else word for word in words]
    allowed = known or (FULL, LINEAR)
    for word in types:
        if word not in allowed:
            choices = ", ".join(allowed)
            raise ConfigError(f"model.config.{key} holds {word!r}; this family has {choices}")
    return types


def every(layers: int, period: int) -> list[str]:
    """Attention in each `period`-th layer, the other mixer elsewhere."""
    return [LINEAR if (i + 1) % period else FULL for i in range(layers)]


def indexed(config: Config, key: str, layers: int, usual: Sequence[int]) -> list[str]:
    """Attention in the layers that a list names by number."""
    numbers = config.layer_numbers(key, usual)
    return [FULL if i in numbers else LINEAR for i in range(layers)]
