"""The options of an address: its query parameters and the words of its path.

Each is described and read here, so that what the description allows is what is accepted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..runfile.text.errors import InputError
from ..tools.translation.arguments import tables
from .export import EXPORTS

Options = Mapping[str, str]
MOST_NUMBERS = 64  # of contexts, and of concurrencies
NUMBER = "[1-9][0-9]{0,8}"
NUMBERS = f"^({NUMBER}(,{NUMBER}){{0,{MOST_NUMBERS - 1}}})?$"
_TABLES = tables(__file__)
Parameters = dict[str, dict[str, Any]]  # of OpenAPI, by name
QUERY: Parameters = _TABLES["query"]
WORDS: Parameters = _TABLES["words"]  # of the path
QUERY["contexts"]["schema"]["pattern"] = QUERY["concurrency"]["schema"]["pattern"] = NUMBERS
QUERY["stretches"]["schema"]["pattern"] = f"^({NUMBER},{NUMBER})?$"
WORDS["format"]["schema"]["enum"] = list(EXPORTS)


def one_of(options: Options, name: str, otherwise: str = "") -> str:
    """An option that must be one of some words; `otherwise`, or the first, where it is left out."""
    words: list[str] = QUERY[name]["schema"]["enum"]
    word = options.get(name, otherwise or words[0])
    if word not in words:
        raise InputError(f"{name}={word!r} must be {' or '.join(words)}")
    return word


def is_true(options: Options, name: str, otherwise: str = "") -> bool:
    """Whether an option is true; `otherwise` where it is left out."""
    return one_of(options, name, otherwise) == "true"


def width(options: Options) -> int:
    """The width of a picture in pixels."""
    rule = QUERY["width"]["schema"]
    low, high = rule["minimum"], rule["maximum"]
    text = options.get("width", str(rule["default"]))
    if not re.fullmatch(NUMBER, text) or not low <= int(text) <= high:
        raise InputError(f"width={text[:20]!r} must be a whole number from {low} to {high}")
    return int(text)


def window(options: Options) -> tuple[int, int] | None:
    """The first and the last stretch of a step, counted from 0; None: all."""
    found = numbers(options, "stretches")
    if not found:
        return None
    if len(found) != 2 or found[0] > found[1]:
        text = options["stretches"][:20]
        raise InputError(f"stretches={text!r} must be the first and the last one, such as 30,36")
    return found[0] - 1, found[1] - 1


def numbers(options: Options, name: str) -> tuple[int, ...]:
    """Whole numbers with commas between them; none where the option is left out or empty."""
    text = options.get(name, "")
    pieces = text.split(",") if text else []
    if len(pieces) > MOST_NUMBERS:
        raise InputError(f"{name} has {len(pieces)} numbers, and may have {MOST_NUMBERS}")
    for piece in pieces:
        if not re.fullmatch(NUMBER, piece):
            rule = "a whole number from 1 to 999999999, with nothing but commas between them"
            raise InputError(f"{name}: {piece[:20]!r} must be {rule}")
    return tuple(map(int, pieces))
