"""What people write in Chinese around a log, in the words that the rules look for."""

from __future__ import annotations

import os
import re
from functools import cache

from ...catalog.kept import read_table

CHINESE = re.compile(r"[\u3000-\u303f\u3400-\u9fff\uff00-\uffef]")


@cache
def _words() -> tuple[tuple[re.Pattern[str], str], ...]:
    path = os.path.join(os.path.dirname(__file__), "chinese.toml")
    words = read_table(path)["words"]
    return tuple((re.compile(form), f" {word} ") for form, word in words.items())


def in_english(text: str) -> str:
    """The text with the Chinese words of chinese.toml in English; as it is where it has none."""
    if not CHINESE.search(text):
        return text
    for form, word in _words():
        text = form.sub(word, text)
    return re.sub(
        r"(?<=[\u3400-\u9fff])(?=\w)(?![\u3400-\u9fff])|(?<=[A-Za-z0-9])(?=[\u3400-\u9fff])",
        " ",
        text,
    )
