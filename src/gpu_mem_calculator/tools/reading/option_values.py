"""Values of options as a run file has them: each is converted, or refused in one sentence."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from decimal import Decimal
from math import isfinite
from typing import Any

from msgspec.structs import replace

from ...run.limits import Bound
from ...runfile.text.errors import InputError, nearest, quoted
from ..translation.arguments import ArgumentTable
from .keys import sort_keys
from .reading import Could, Limit, Reading

SIZE = re.compile(r"(\d{1,15})(\.\d{1,15})?([A-Za-z]{1,2})")
Units = Mapping[str, int]
DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}  # torch's names


def option(name: str) -> str:
    """An option as it is written: `--max-model-len`, `--speculative-config.num_tokens`."""
    first, dot, rest = name.partition(".")
    return f"--{first.replace('_', '-')}{dot}{rest}"


def sort_options(
    reading: Reading, table: ArgumentTable, given: Mapping[str, Any]
) -> dict[str, Any]:
    """The given options that are honoured or free, as in `sort_keys`, written with dashes."""
    part = Reading(tool=reading.tool, version=reading.version)
    kept = sort_keys(part, table, given)
    reading.keys |= {option(name): effect for name, effect in part.keys.items()}
    for limit in part.limits:
        name, _, value = limit.key.partition("=")
        reading.limits.append(replace(limit, key=f"{option(name)}={value}"))
    reading.problems += (f"--{one}" for one in part.problems)
    return kept


def add_limit(
    reading: Reading, name: str, value: Any, why: str, could: Could, most: Bound = None
) -> None:
    """Note that an option's value is not modelled; `most`: bytes that it adds or saves at most."""
    key = f"{option(name)}={quoted(value)}"
    reading.limits.append(Limit(key=key, why=why, could=could, adds=most, saves=most))


def whole_value(key: str, value: Any, least: int = 0) -> int:
    """A whole number; the key is as the user wrote it."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= least:
        return value
    open_ = isinstance(value, str) and "$" in value
    rest = ", which the script does not say; write its value" if open_ else f" of at least {least}"
    raise InputError(f"{key}={quoted(value)} must be a whole number{rest}")


def translated(key: str, value: Any, known: Mapping[str, str]) -> str:
    """A word of a run file for one of the tool's; the key is as the user wrote it."""
    if str(value) not in known:
        raise InputError(f"{key}={quoted(value)} must be one of {', '.join(known)}")
    return known[str(value)]


def whole_number(name: str, value: Any, units: Units | None = None, least: int = 1) -> int:
    """A whole number, with one of the units that the option takes: `4K`.

    Units of 1,000 take decimals.
    """
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    match = SIZE.fullmatch(value) if isinstance(value, str) else None
    unit = (units or {}).get(match[3], 0) if match else 0
    if match and unit and (match[2] is None or unit % 1000 == 0):
        return int(Decimal(match[1] + (match[2] or "")) * unit)
    return whole_value(option(name), value, least)


def real_number(name: str, value: Any) -> float:
    """A finite number of at least 0."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and isfinite(value) and value >= 0:
        return float(value)
    raise InputError(f"{option(name)}={quoted(value)} must be a number of at least 0")


def truth(name: str, value: Any) -> bool:
    """True or false."""
    if isinstance(value, bool) or value in (0, 1):
        return bool(value)
    raise InputError(f"{option(name)}={quoted(value)} must be true or false")


def whole_numbers(name: str, value: Any) -> list[int]:
    """Whole numbers of at least 1."""
    values = value if isinstance(value, list) else [value]
    return [whole_number(name, one) for one in values]


def chosen(name: str, value: Any, choices: Iterable[str]) -> str:
    """One of the words that an option takes."""
    words = list(choices)
    if isinstance(value, str) and value in words:
        return value
    hint = nearest(str(value), words) or f"; it takes {', '.join(words)}"
    raise InputError(f"{option(name)}={quoted(value)} is none of its values{hint}")


PAIRS = re.compile(r"\w+=\d{1,9}(,\w+=\d{1,9})*")


def json_object(name: str, value: Any) -> dict[str, Any]:
    """An object that was given as JSON, or as `key=1,other=2`, which vLLM took until 0.9."""
    if isinstance(value, Mapping):
        return {str(key): one for key, one in value.items()}
    if isinstance(value, str) and PAIRS.fullmatch(value):
        pairs = (one.split("=") for one in value.split(","))
        return {key: int(count) for key, count in pairs}
    raise InputError(f"{option(name)}={quoted(value)} must be a JSON object, such as '{{...}}'")
