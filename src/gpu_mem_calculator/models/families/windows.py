"""Which layers attend to a window, and how wide it is; and in stacks that mix attention with mixers
of a fixed state, which layer is which.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .config import Config, ConfigError

FULL, SLIDING = "full_attention", "sliding_attention"
LINEAR, HYBRID = "linear_attention", "hybrid"
# Words of older configs (transformers 5.17 configuration_utils.py _LEGACY_LAYER_TYPE_REMAP).
OLD_WORDS = {"conv": LINEAR, "mamba": LINEAR, "mamba2": LINEAR, "attention": FULL}
Windows = tuple[int | None, ...]  # one for each layer, or empty


def same_windows(config: Config, num_layers: int, default: int | None) -> Windows:
    """`sliding_window` on every layer; nothing where it is null."""
    window = config.nullable("sliding_window", default)
    return () if window is None else (window,) * num_layers


def same(default: int | None) -> Callable[[Config, int], Windows]:
    """A reader of one window for every layer."""
    return lambda config, layers: same_windows(config, layers, default)


def layer_types(config: Config, num_layers: int, default: Sequence[str]) -> tuple[str, ...]:
    """`layer_types`, one word per layer, else the family's own pattern."""
    kinds = config.get("layer_types")
    if kinds is None:
        return tuple(default)
    if not isinstance(kinds, list) or len(kinds) != num_layers:
        raise ConfigError(f"model.config.layer_types must be a list of {num_layers} entries")
    for kind in kinds:
        if kind not in (FULL, SLIDING):
            raise ConfigError(
                f"model.config.layer_types holds {kind!r}; this family has {FULL} and {SLIDING}"
            )
    return tuple(kinds)


def typed_windows(types: Sequence[str], window: int | None) -> Windows:
    """The window on each sliding layer; nothing where no layer slides."""
    if window is None or SLIDING not in types:
        return ()
    return tuple(window if kind == SLIDING else None for kind in types)


def patterned(
    config: Config, layers: int, window: int | None, slides: Callable[[int], bool]
) -> Windows:
    """`layer_types` and one window; without types, `slides` says which layers slide."""
    usual = [SLIDING if window is not None and slides(i) else FULL for i in range(layers)]
    return typed_windows(layer_types(config, layers, usual), window)


def typed(
    default: int | None, slides: Callable[[int], bool] = lambda index: True
) -> Callable[[Config, int], Windows]:
    """A reader of `layer_types` and `sliding_window`; `slides` is the pattern without types."""

    def windows(config: Config, layers: int) -> Windows:
        return patterned(config, layers, config.nullable("sliding_window", default), slides)

    return windows


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
