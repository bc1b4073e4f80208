"""A run in the making: what was read so far of an Axolotl file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field

from ...runfile.text.errors import InputError, quoted
from ..reading.reading import Could, Reading, Section
from ..releases.tool_at import ToolAt
from ..translation.arguments import Values
from ..translation.tools import TRAINER

Limits = Mapping[str, tuple[str, Could]]  # why something is not modelled, and what it could do
TRUE, FALSE = ("true", "yes", "on", "y", "t", "1"), ("false", "no", "off", "n", "f", "0")


class Draft(Struct, kw_only=True):
    """The file's settings, and the sections of a run file that they become.

    - `at`: Axolotl at the user's release
    - `cfg`: every honoured key, with Axolotl's default where the file has none
    - `args`, `load`, `peft`, `quantization`, `data`, `launch`: of the program section
    - `training`, `engine`: keys that Axolotl adds; they win over the program's
    """

    reading: Reading
    cfg: Values
    at: ToolAt
    tool: str = TRAINER
    args: Section = field(default_factory=dict)
    load: Section = field(default_factory=dict)
    peft: Section | None = None
    quantization: Section | None = None
    data: Section = field(default_factory=dict)
    launch: Section = field(default_factory=dict)
    training: Section = field(default_factory=dict)
    engine: Section = field(default_factory=dict)
    num_gpus: int | None = None

    def get(self, key: str) -> Any:
        """The value of a key."""
        return self.cfg.get(key)

    def flag(self, key: str) -> bool:
        """Whether a key is on; texts such as "yes" are as in pydantic."""
        return flag(self.cfg.get(key), key)

    def whole(self, key: str) -> int | None:
        """A whole number, 1 or more; None where there is none."""
        return whole(self.cfg.get(key), key)

    def limit(self, key: str, why: str, could: Could = "either", value: Any = None) -> None:
        """Name what is not modelled."""
        given = self.cfg.get(key) if value is None else value
        self.reading.limit(f"{key}={quoted(given)}", why, could)

    def section(self, key: str) -> Values:
        """A key whose value is a section."""
        return mapping(self.cfg.get(key), key)

    def number(self, key: str) -> float:
        """A number; 0 where there is none."""
        return number(self.cfg.get(key), key)

    def assume(self, sentence: str) -> None:
        """List a default that changes memory, once."""
        if sentence not in self.reading.assumed:
            self.reading.assumed.append(sentence)


def flag(value: Any, key: str) -> bool:
    """A true or false of YAML or of a command line."""
    if value is None or isinstance(value, bool):
        return bool(value)
    word = str(value).strip().lower()
    if word in TRUE or word in FALSE:
        return word in TRUE
    raise InputError(f"{key}={quoted(value)} must be true or false")


def whole(value: Any, key: str) -> int | None:
    """A whole number, 1 or more."""
    if value is None:
        return None
    number = _number(value)
    if isinstance(value, bool) or number is None or number < 1 or number != int(number):
        raise InputError(f"{key}={quoted(value)} must be a whole number, 1 or more")
    return int(number)


def number(value: Any, key: str) -> float:
    """A number, 0 where there is none."""
    if value is None:
        return 0.0
    found = None if isinstance(value, bool) else _number(value)
    if found is None:
        raise InputError(f"{key}={quoted(value)} must be a number")
    return found


def mapping(value: Any, key: str) -> Values:
    """A section of a file; empty where there is none."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InputError(f"{key}={quoted(value)} must be a section with keys")
    return {str(name): one for name, one in value.items()}


def _number(value: Any) -> float | None:
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return found if abs(found) < 1e15 else None  # neither infinite nor NaN
