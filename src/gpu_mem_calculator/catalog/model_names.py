"""The preset that a model's name means, in any spelling.

A name is split into words: `Llama-3.1-8B-Instruct` and `llama3.1 8b instruct` are both
llama 3.1 8b instruct. Numbers are never joined, so that a name means no model of another size; a
point between them may be written as anything, as in `llama-3-1-8b`, where one model alone fits.
"""

from __future__ import annotations

import re
from functools import cache, lru_cache

from . import Row, find, rows

# Words that name a tuning of a model, which has the same architecture.
TUNINGS = frozenset(["instruct", "it", "chat", "base", "hf", "pt", "meta"])
_POINT = r"(?<=\d)_(?=\d)"  # written as an underscore
_NUMBER = r"(?<=[a-z])(?=\d)"  # its begin, after letters
_WORD = r"\d+(?:\.\d+)*[a-z]*|[a-z]+"


def words(name: str) -> tuple[str, ...]:
    """The words of a name's last part: letters and numbers, in lower case."""
    text = name.lower().rpartition("/")[2]
    return tuple(re.findall(_WORD, re.sub(_NUMBER, " ", re.sub(_POINT, ".", text))))


def _untuned(found: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(word for word in found if word not in TUNINGS)


def _own_names(row: Row) -> tuple[str, ...]:
    return (row["name"], row["title"], row.get("hub_id") or "")


@lru_cache(maxsize=64)
def _spelled(*some: str) -> dict[tuple[str, ...], str]:
    """The preset of each name in words, and of its words without tunings, where only one has it;
    for names with some words, or for all.
    """
    whole: dict[tuple[str, ...], set[str]] = {}
    untuned: dict[tuple[str, ...], set[str]] = {}
    for row in rows("index"):
        names = [*filter(None, _own_names(row)), *row.get("aliases", ())]
        text = " ".join(names).lower()
        if not all(word in text for word in some):
            continue
        for name in names:
            whole.setdefault(words(name), set()).add(row["name"])
            untuned.setdefault(_untuned(words(name)), set()).add(row["name"])
    found = {**untuned, **whole}
    return {key: names.copy().pop() for key, names in found.items() if len(names) == 1 and key}


@cache
def _meanings() -> dict[tuple[str, ...], str]:
    """The preset of each size without a name, and of each name without a size."""
    return {words(text): row["name"] for row in rows("index") for text in row.get("means", ())}


def spelled(name: str) -> Row | None:
    """The preset whose name, title or alias this is, in any spelling and under any publisher."""
    row = find("index", name)
    if row is not None:
        return row
    found = words(name)
    spellings = _spelled(*(word for word in _untuned(found) if "." not in word))
    known = spellings.get(found) or spellings.get(_untuned(found))
    known = known or _apart().get(_parts(found))
    return find("index", known) if known else None


def _parts(found: tuple[str, ...]) -> tuple[str, ...]:
    """The letters and whole numbers of words, without tunings: 3.1 and 3-1 are the same."""
    return tuple(re.findall(r"\d+|[a-z]+", " ".join(_untuned(found))))


@cache
def _apart() -> dict[tuple[str, ...], str]:
    """The preset of each name in parts, where only one has them."""
    found: dict[tuple[str, ...], set[str]] = {}
    for row in rows("index"):
        for name in filter(None, (*_own_names(row), *row.get("aliases", ()))):
            found.setdefault(_parts(words(name)), set()).add(row["name"])
    return {key: names.copy().pop() for key, names in found.items() if len(names) == 1}


def meaning(text: str) -> Row | None:
    """The model that a size such as `8b`, or a family such as `mistral`, means today."""
    known = _meanings().get(words(text)) if "/" not in text else None
    return find("index", known) if known else None


@cache
def spellings() -> dict[str, list[str]]:
    """For each preset the words, with spaces, of every text that means it: for a search."""
    found: dict[str, list[str]] = {}
    for key, name in [*_spelled().items(), *_meanings().items()]:
        found.setdefault(name, []).append(" ".join(key))
    return found


def is_own(name: str, row: Row) -> bool:
    """Whether a name is the preset's own, and not that of a model with its architecture."""
    asked = _untuned(words(name))
    for own in map(_untuned, map(words, filter(None, _own_names(row)))):
        shorter = min(len(asked), len(own))
        if asked[:shorter] == own[:shorter] or _parts(asked) == _parts(own):
            return True
    return False


@lru_cache(maxsize=64)
def similar(name: str) -> str:
    """The nearest preset of the same family and size; an empty text where there is none."""
    import difflib

    asked = words(name)
    families = {words(one)[0] for one in _all_names()}
    numbers = sorted(re.findall(r"\d+(?:\.\d+)*", " ".join(asked)))
    candidates = [
        one
        for one in _all_names()
        if sorted(re.findall(r"\d+(?:\.\d+)*", " ".join(words(one)))) == numbers
        and (not asked or asked[0] not in families or words(one)[0] == asked[0])
    ]
    near = difflib.get_close_matches(name.lower(), candidates, n=1, cutoff=0.75)
    return near[0] if near else ""


@cache
def _all_names() -> tuple[str, ...]:
    """Every name of a preset without a publisher."""
    names = (name for row in rows("index") for name in (row["name"], *row.get("aliases", ())))
    return tuple(name for name in names if "/" not in name)
