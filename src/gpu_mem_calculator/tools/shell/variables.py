"""The variables of a shell script while it is read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from .bounds import checked_value

UNKNOWN = "$"  # a value that is not known keeps its text, which begins with this
Array = dict[str, str]


def is_known(text: str) -> bool:
    """Whether a value has no part that only running the script would show."""
    return UNKNOWN not in text


class Variables:
    """Variables, arrays, what is exported, and the arguments of the script.

    Arguments that were not given are unknown: somebody may start the script with some. `asked` are
    the places of those that the script itself uses, outside of functions and other scripts.
    """

    def __init__(self, environment: Mapping[str, str], arguments: Sequence[str]) -> None:
        self.values: dict[str, str | Array] = dict(environment)
        self.exported: set[str] = set(environment)
        self.arguments = list(arguments)
        self.arguments_known = bool(arguments)
        self.asked: set[int] = set()
        self.asks = True

    def copy(self) -> Variables:
        """The same variables, for a subshell."""
        other = Variables({}, self.arguments)
        other.values = {
            name: dict(value) if isinstance(value, dict) else value
            for name, value in self.values.items()
        }
        other.exported, other.arguments_known = set(self.exported), self.arguments_known
        other.asked, other.asks = self.asked, self.asks
        return other

    def environment(self) -> dict[str, str]:
        """What a command would find in its environment, without what is not known."""
        named = ((name, self.values.get(name)) for name in sorted(self.exported))
        return {name: value for name, value in named if isinstance(value, str) and is_known(value)}

    def set(self, name: str, value: str, *, append: bool = False) -> None:
        """Set a variable, or an element: `name[index]`."""
        base, _, index = name.partition("[")
        old = self.values.get(base)
        if index:
            array = self.array(base)
            key = self._index(index.rstrip("]"))
            array[key] = checked_value((array.get(key, "") if append else "") + value)
            self.values[base] = array
        elif isinstance(old, dict):
            old["0"] = checked_value((old.get("0", "") if append else "") + value)
        else:
            self.values[base] = checked_value((old or "") + value if append else value)

    def set_array(self, name: str, elements: Iterable[str], *, append: bool = False) -> None:
        """Set an array, or append to it; `[key]=value` sets an element."""
        array = self.array(name) if append else {}
        for element in elements:
            keyed = re.fullmatch(r"\[([^\]]+)\]=(.*)", element, re.DOTALL)
            place, text = (self._index(keyed[1]), keyed[2]) if keyed else (str(len(array)), element)
            array[place] = text
        checked_value("".join(array.values()))
        self.values[name] = array

    def array(self, name: str) -> Array:
        """A variable as an array; a plain one is its first element."""
        value = self.values.get(name)
        return dict(value) if isinstance(value, dict) else {} if value is None else {"0": value}

    def get(self, name: str, index: str | None = None) -> str | None:
        """A value; None where it is not set."""
        if name.isdigit():
            place = int(name) - 1 if len(name) < 6 else len(self.arguments)
            return self.arguments[place] if 0 <= place < len(self.arguments) else None
        value = self.values.get(name)
        if isinstance(value, dict):
            return value.get(self._index(index or "0"))
        return value if index in (None, "0") else None

    def elements(self, name: str) -> list[str] | None:
        """All elements of an array, or all arguments; None where it is not set."""
        if name in ("@", "*"):
            return list(self.arguments)
        return list(self.array(name).values()) if name in self.values else None

    def _index(self, text: str) -> str:
        text = text.strip().strip("'\"")
        value = self.values.get(text.removeprefix(UNKNOWN).strip("{}"))
        return value if isinstance(value, str) else text
