"""Reading a config.json: a key under any of its names, else the family's default."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import isqrt
from typing import TYPE_CHECKING, Any

from ...ledger.quoting import quoted

if TYPE_CHECKING:
    from ..arch.arch import Arch

Data = Mapping[str, Any]
Fields = dict[str, Any]  # keyword arguments of a block or of a model
MOST = 10**9
MOST_LAYERS = 1024
"""The deepest published models have about 160 layers, the worked example up to 840; a ledger walks
through each.
"""


class ConfigError(ValueError):
    """A config.json that cannot be read, in one sentence."""


class Config:
    """A config.json with typed reads. `null` counts as missing, as in transformers.

    `read`: reads a config.json inside this one.
    """

    def __init__(self, data: Data, read: Callable[[Data], Arch] | None = None) -> None:
        self.data, self.read = data, read

    def get(self, *names: str) -> Any:
        """The first name that is there and not null."""
        return next((self.data[n] for n in names if self.data.get(n) is not None), None)

    def size(self, *names: str, default: int | None = None, most: int | None = None) -> int:
        """A positive whole number; counts of layers and the like are small."""
        value = self.get(*names)
        if value is None:
            if default is None:
                raise ConfigError(f"model.config has no {names[0]!r}; add it")
            return default
        most = most or (MOST_LAYERS if "layer" in names[0] else MOST)
        whole = isinstance(value, int | float) and not isinstance(value, bool)
        if not whole or not 1 <= value <= most or int(value) != value:
            rule = f"must be a whole number from 1 to {most:,}"
            raise ConfigError(f"model.config.{names[0]}={quoted(value)} {rule}")
        return int(value)

    def count(self, *names: str, default: int = 0) -> int:
        """A whole number that may be zero."""
        value = self.get(*names)
        return 0 if value == 0 else self.size(*names, default=default) if value else default

    def _typed(self, name: str, kind: type, rule: str) -> object:
        """A value of one type, or None where the key is missing."""
        value = self.get(name)
        if value is not None and not isinstance(value, kind):
            raise ConfigError(f"model.config.{name}={quoted(value)} must be {rule}")
        return value

    def flag(self, name: str, *, default: bool = False) -> bool:
        """True or false."""
        value = self._typed(name, bool, "true or false")
        return default if value is None else bool(value)

    def number(self, name: str, *, default: float = 0.0) -> float:
        """A number."""
        value = self.get(name)
        if value is None:
            return default
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not abs(value) <= MOST:
            raise ConfigError(f"model.config.{name}={quoted(value)} must be a number")
        return float(value)

    def hidden(self, default: int) -> int:
        """The hidden size."""
        return self.size("hidden_size", default=default)

    def layers(self, default: int) -> int:
        """The number of layers."""
        return self.size("num_hidden_layers", default=default)

    def ffn(self, default: int) -> int:
        """The width of the MLP."""
        return self.size("intermediate_size", default=default)

    def vocab(self, default: int) -> int:
        """Rows of the embedding."""
        return self.size("vocab_size", default=default)

    def activation(self, default: str = "silu") -> str:
        """The name of the MLP's activation."""
        return self.text("hidden_act", default)

    def with_defaults(self, defaults: Data) -> Config:
        """The same config; a key that is missing or null has the value given."""
        return Config({**defaults, **{k: v for k, v in self.data.items() if v is not None}})

    def divided(self, total: int, name: str, parts: int) -> int:
        """total / parts, refused where it does not divide."""
        if total % parts:
            fix = f"{_near(total, parts)} would"
            raise ConfigError(f"model.config: {parts} {name} do not divide {total}; {fix}")
        return total // parts

    def text(self, name: str, default: str) -> str:
        """A word, such as the name of an activation."""
        value = self._typed(name, str, f"a string such as {default!r}")
        return default if value is None else str(value)

    def nullable(self, name: str, default: int | None) -> int | None:
        """A size or None: `null` means None, a missing key the default."""
        if name in self.data and self.data[name] is None:
            return None
        return default if self.get(name) is None else self.size(name)

    def optional_number(self, name: str, default: float | None) -> float | None:
        """A number or None: `null` means None, a missing key the default."""
        if name in self.data and self.data[name] is None:
            return None
        return default if self.get(name) is None else self.number(name)

    def section(self, name: str) -> Config:
        """The config inside this one under `name`; an empty one where the key is missing."""
        value = self.get(name)
        if value is not None and not isinstance(value, dict):
            raise ConfigError(f"model.config.{name}={quoted(value)} must be an object")
        return Config(value or {})

    def layer_numbers(self, name: str, default: Iterable[int]) -> list[int]:
        """A list of layer numbers, else the default."""
        value = self.get(name)
        numbers = list(default) if value is None else value
        if not isinstance(numbers, list) or not all(isinstance(index, int) for index in numbers):
            raise ConfigError(f"model.config.{name}={quoted(numbers)} must list layer numbers")
        return numbers

    def per_layer(self, name: str, layers: int, default: list[Any]) -> list[Any]:
        """A list with one entry for each layer, else the default."""
        value = self.get(name)
        if value is None:
            return default
        if not isinstance(value, list | tuple) or len(value) != layers:
            text = f"{len(value)} entries" if isinstance(value, list | tuple) else repr(value)
            raise ConfigError(f"model.config.{name} has {text}; it must list all {layers} layers")
        return list(value)


def _near(total: int, parts: int) -> str:
    """The divisors of a number next to one that does not divide it, in words."""
    small = [n for n in range(1, isqrt(total) + 1) if total % n == 0]
    divisors = sorted({*small, *(total // n for n in small)})
    above = [n for n in divisors if n > parts][:1]
    return " and ".join(map(str, [n for n in divisors if n < parts][-1:] + above))
