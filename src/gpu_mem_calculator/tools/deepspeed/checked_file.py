"""Checks a DeepSpeed file key by key: problems, keys that take no memory, values that are read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ...ledger.dtypes import dtype_name
from ...runfile.text.errors import nearest, quoted
from ..translation.arguments import Values, tables
from .auto import AUTO, FILLED
from .keys import (
    COUNT,
    FLAG,
    NUMBER,
    OBJECT,
    TOP,
    VERSION,
    AliasKey,
    FixedKey,
    MemoryFreeKey,
    MemoryKey,
    RemovedKey,
    Rule,
    SwitchedKey,
    Table,
)

OLD_FORM = "old"  # the value for zero_optimization where it is true or false instead of an object
DEEPSPEED_AUTO = ("pipeline.stages",)  # keys for which DeepSpeed itself accepts "auto"
KINDS: Mapping[str, str] = tables(__file__)["kinds"]  # what a value must be


class CheckedFile:
    """A checked file.

    - values: the values that are read, by path
    - free: the keys that take no memory
    - auto: the keys that are "auto", for which the Trainer has a value
    - problems: a sentence for each
    """

    def __init__(self, data: Values) -> None:
        self.values: dict[str, Any] = {}
        self.free: list[str] = []
        self.auto: list[str] = []
        self.problems: list[str] = []
        self.table("", data, TOP)

    def get(self, path: str, default: Any = None) -> Any:
        """The value that was read at a path, or `default`."""
        return self.values.get(path, default)

    def section(self, path: str) -> dict[str, Any]:
        """The values that were read of one section, by key."""
        start = f"{path}."
        inside = [name for name in self.values if name.startswith(start)]
        return {name.removeprefix(start): self.values[name] for name in inside}

    def table(self, where: str, section: Any, table: Table) -> None:
        """Check one section of the file, at path `where`, against the table of its keys."""
        if not isinstance(section, Mapping):
            self.problems.append(f"{where}={quote(section)} must be an object")
            return
        for key, value in section.items():
            path = f"{where}.{key}" if where else str(key)
            rule = table.get(key)
            if isinstance(rule, AliasKey):
                if rule.key in section:
                    self.problems.append(f"{path} and {rule.key} are the same; leave {key} out")
                    continue
                path, rule = path.removesuffix(key) + rule.key, table[rule.key]
            if rule is None:
                hint = nearest(key, table)
                self.problems.append(f"{path} is not a key of DeepSpeed {VERSION}{hint}")
            elif isinstance(rule, Mapping):
                self._nested(path, value, rule)
            else:
                self._one(path, value, rule)

    def _nested(self, path: str, value: Any, table: Table) -> None:
        if path == "zero_optimization" and isinstance(value, bool):  # its form of 2020
            self.values |= {path: OLD_FORM, f"{path}.stage": int(value)}
        elif value is not None:
            self.values[path] = True
            self.table(path, value, table)

    def _one(self, path: str, value: Any, rule: Rule) -> None:
        if isinstance(rule, RemovedKey):
            why = f"DeepSpeed {VERSION} has no {rule.what} any more, and refuses the key"
            self.problems.append(f"{path}: {why}; {rule.fix}")
        elif value is None:
            return
        elif isinstance(rule, FixedKey):
            self._only(path, value, rule.values, rule.why)
        elif value == AUTO and path not in DEEPSPEED_AUTO:
            self._auto(path, rule)
        elif isinstance(rule, MemoryFreeKey):
            self._free(path, value, rule)
        elif isinstance(rule, SwitchedKey):
            self._switched(path, value, rule)
        elif isinstance(rule, MemoryKey):
            self._read(path, value, rule)

    def _auto(self, path: str, rule: Rule) -> None:
        if isinstance(rule, MemoryFreeKey):
            self.free.append(path)
        elif path in FILLED:
            self.auto.append(path)
        else:
            self.problems.append(auto_message(path))

    def _only(self, path: str, value: Any, allowed: tuple[Any, ...], why: str) -> None:
        if value in allowed and isinstance(value, bool) == isinstance(allowed[0], bool):
            self.free.append(path)
            return
        fix = f"set it to {quote(allowed[0])} or leave it out" if allowed else "leave it out"
        self.problems.append(f"{path}={quote(value)}: {why}; {fix}")

    def _free(self, path: str, value: Any, rule: MemoryFreeKey) -> None:
        self.free.append(path)
        if rule.keys is None:
            return
        if not isinstance(value, Mapping):
            self.problems.append(f"{path}={quote(value)} must be an object")
            return
        self.problems += (
            f"{path}.{key} is not a key of DeepSpeed {VERSION}{nearest(key, rule.keys)}"
            for key in value
            if key not in rule.keys
        )

    def _read(self, path: str, value: Any, rule: MemoryKey) -> None:
        if rule.words and (value not in rule.words or isinstance(value, bool)):
            words = ", ".join(quote(word) for word in rule.words)
            hint = nearest(str(value), map(str, rule.words))
            self.problems.append(f"{path}={quote(value)} must be one of {words}{hint}")
            return
        try:
            self.values[path] = value if rule.words else convert_value(value, rule.kind)
        except ValueError:
            self.problems.append(f"{path}={quote(value)} must be {KINDS[rule.kind]}")

    def _switched(self, path: str, value: Any, rule: SwitchedKey) -> None:
        """Check a section that has no effect when it is off, and is not modelled when it is on."""
        switch, allowed, why = rule
        if not isinstance(value, Mapping):
            self.problems.append(f"{path}={quote(value)} must be an object")
        elif switch in value:
            self._only(f"{path}.{switch}", value[switch], allowed, why)
        elif value:
            fix = f"set it to {quote(allowed[0])} or leave {path} out"
            self.problems.append(f"{path} does not say {switch!r}: {why}; {fix}")


def auto_message(path: str) -> str:
    """The sentence for "auto" at a key that neither DeepSpeed nor the Trainer fills in."""
    return f'{path}="auto": neither DeepSpeed nor the Trainer fills it in; write its value'


def convert_value(value: Any, kind: str) -> Any:
    """A value converted to a kind; 5e8 is a whole number. Raises ValueError where it is not one."""
    if kind == FLAG:
        valid = isinstance(value, bool)
    elif kind == OBJECT:
        valid = isinstance(value, Mapping)
    elif kind == "dtype":
        value = dtype_name(value) if isinstance(value, str) else value
        valid = value in ("fp32", "fp16", "bf16")
    else:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        valid = number and 0 <= value < 1e300
        if valid and kind != NUMBER:
            valid = value == int(value) and value >= (kind == COUNT)
            value = int(value)
    if not valid:
        raise ValueError
    return value


def quote(value: Any) -> str:
    """A value as JSON, shortened to 60 characters, for error messages."""
    return json.dumps(value) if isinstance(value, str) and len(value) < 58 else quoted(value)
