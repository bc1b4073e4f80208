"""The options of an address: its query parameters and the words of its path.

Each is described and read here, so that what the description allows is what is accepted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..runfile.text.errors import InputError
from .export import EXPORTS

Options = Mapping[str, str]
WIDTHS = (320, 1600)
WIDTH = 1000
MOST_NUMBERS = 64  # of contexts, and of concurrencies
NUMBER = "[1-9][0-9]{0,8}"
NUMBERS = f"^({NUMBER}(,{NUMBER}){{0,{MOST_NUMBERS - 1}}})?$"
THEMES = ("light", "dark")
REPLAYS = ("false", "true")
PAGES = ("false", "true")
Parameter = dict[str, Any]  # of OpenAPI


def _text(description: str, example: str = "", **schema: Any) -> Parameter:
    """A parameter that is a text, or of another `type`."""
    shown = {"example": example} if example else {}
    return {"schema": {"type": "string", **schema}, **shown, "description": description}


def _choice(description: str, words: tuple[str, ...]) -> Parameter:
    """A parameter that is one of some words, the first by default."""
    return _text(description, enum=list(words), default=words[0])


PIXELS: Parameter = {"minimum": WIDTHS[0], "maximum": WIDTHS[1], "default": WIDTH}
SETTING = "a setting; every `section.key` of a run file may be one"
PRESET = "a name of /api/presets; a beginning is enough where it is unique"
# Query parameters; where `model.name` is one, so is any setting, `section.key=value`.
QUERY: dict[str, Parameter] = {
    "contexts": _text("rows of the table, such as 4096,32768", "4096,32768", pattern=NUMBERS),
    "concurrency": _text("its columns, such as 1,16,64", "1,16,64", pattern=NUMBERS),
    "width": _text("of the picture, in pixels", type="integer", **PIXELS),
    "replay": _choice("whether torch's allocator is replayed, which takes a second", REPLAYS),
    "page": _choice("whether the HTML that the page shows is in the answer", PAGES),
    "theme": _choice("the picture's colours", THEMES),
    "model.name": _text(SETTING, "llama2-7b", minLength=1),
}
# Words of the path.
WORDS: dict[str, Parameter] = {
    "format": _text("in any case", "deepspeed", enum=list(EXPORTS)),
    "name": _text(PRESET, "llama2-7b", minLength=1),
}


def one_of(options: Options, name: str, words: tuple[str, ...]) -> str:
    """An option that must be one of `words`; the first where it is left out."""
    word = options.get(name, words[0])
    if word not in words:
        raise InputError(f"{name}={word!r} must be {' or '.join(words)}")
    return word


def width(options: Options) -> int:
    """The width of a picture in pixels."""
    low, high = WIDTHS
    text = options.get("width", str(WIDTH))
    if not re.fullmatch(NUMBER, text) or not low <= int(text) <= high:
        raise InputError(f"width={text[:20]!r} must be a whole number from {low} to {high}")
    return int(text)


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
