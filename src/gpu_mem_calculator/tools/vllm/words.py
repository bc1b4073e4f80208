"""The words of a command as vLLM's parser changes them before it reads them.

vllm 0.33.0 vllm/utils/argparse_utils.py FlexibleArgumentParser.parse_args: `--x.a.b 1` sets a field
of the JSON option x, `--x.a+ 1,2` adds to a list, `-O3` is the optimization level.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ...runfile.text.errors import InputError
from ..reading.option_values import SIZE, Units, whole_number

FIELD = re.compile(r"(--?[A-Za-z][\w-]*)\.([\w.\-]+)(\+?)")
LEVEL = re.compile(r"-O=?(\d+)")
MOST_NESTED = 20
# vllm/utils/argparse_utils.py human_readable_int
UNITS: Units = {
    **{unit: 1000**power for power, unit in enumerate("kmgt", 1)},
    **{unit: 1024**power for power, unit in enumerate("KMGT", 1)},
}


def joined_words(words: Sequence[str]) -> list[str]:
    """The words with fields of JSON options joined into one object for each option."""
    result: list[str] = []
    objects: dict[str, dict[str, Any]] = {}
    pending = iter(words)
    for word in pending:
        name, sign, value = word.partition("=")
        match, level = FIELD.fullmatch(name), LEVEL.fullmatch(word)
        if level:
            result += ("--optimization-level", level[1])
        elif match is None:
            result.append(word)
        else:
            text = value if sign else next(pending, None)
            if text is None:
                raise InputError(f"{name} needs a value after it")
            given = list(map(_value, text.split(","))) if match[3] else _value(text)
            _put(objects.setdefault(match[1], {}), match[2].split("."), given)
    result = _levels(result)
    return [*result, *(word for name, one in objects.items() for word in (name, json.dumps(one)))]


def merged(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Two objects as one; the second wins, and lists are joined."""
    result = dict(first)
    for key, value in second.items():
        old = result.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            result[key] = merged(old, value)
        elif isinstance(old, list) and isinstance(value, list):
            result[key] = [*old, *value]
        else:
            result[key] = value
    return result


def _put(target: dict[str, Any], path: list[str], value: Any) -> None:
    if len(path) > MOST_NESTED:
        raise InputError(f"an option with {len(path)} nested fields is not one of vLLM's")
    for key in reversed(path):
        value = {key: value}
    result = merged(target, value)
    target.clear()
    target.update(result)


def _value(text: str) -> Any:
    if (match := SIZE.fullmatch(text)) and match[3] in UNITS:
        return whole_number("", text, UNITS)
    if text in ("True", "False"):
        return text == "True"
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _levels(words: Sequence[str]) -> list[str]:
    """`-O 3` as the optimization level."""
    return [
        "--optimization-level" if word == "-O" and after.isdigit() else word
        for word, after in zip(words, [*words[1:], ""], strict=False)
    ]
