"""The card that a text means: its name, title or nvidia-smi's name, in any spelling.

A name has words that tell cards apart (4090, ti, laptop) and words that may be left out: the
maker, the form (pcie, sxm) and the memory (80gb). Two names are the same card where their telling
words are equal and every other word of the shorter one is a word of the longer one.
"""

from __future__ import annotations

import re
from functools import cache, lru_cache

from . import Row, named, rows

# Words that tell no card apart.
MAKERS = frozenset(
    [
        *("nvidia", "geforce", "rtx", "gtx", "tesla", "amd", "radeon", "instinct", "rx"),
        *("intel", "arc", "data", "center", "google", "apple", "ryzen", "ai", "generation"),
        *("graphics", "gpu", "card", "chip", "series", "edition", "workstation", "per"),
        "oam",  # the form of every MI300X
    ]
)
FORMS = frozenset(["pcie", "sxm", "nvl", "hbm2", "hbm2e", "hbm3", "hbm3e"])
OTHER_WORDS = {"mobile": "laptop", "notebook": "laptop", "nvlink": "sxm"}
# Words that mean another card than the same name without them.
ANOTHER = frozenset(["ti", "super", "laptop", "d", "maxq", "sff"])
SIZE = r"\d+gb"
EITHER = "|"  # between names of which one is meant
_SPELLINGS = (
    (r"\(.*?\)|[™®+]", " "),
    (r"max[- ]q\b", "maxq"),
    (r"\b(\d+g)[.-](\d+)gb\b", r"\1.\2gb"),  # a MIG profile
    (r"(?<![\w.])(\d+) ?(?:gib|gb|g)\b(?!\.\d)", r"\1gb"),
    (r"\b(nvidia|geforce|quadro|tesla|rtx|gtx|rx|arc|apple)(?=[a-z]?\d)", r"\1 "),
    (r"(?<=\d)(tisuper|ti|super|laptop|mobile|ada|sxm|pcie|nvl)(?=\d?\b)", r" \1"),
    (r"\btisuper\b", "ti super"),
    (r"\b(sxm)\d\b", r"\1"),
)


@lru_cache(maxsize=1024)
def words(text: str) -> tuple[str, ...]:
    """The words of a card's name in one spelling, without its maker."""
    text = text.lower().replace("_", " ")
    for pattern, written in _SPELLINGS:
        text = re.sub(pattern, written, text)
    found = re.findall(r"\d+g\.\d+gb|[a-z0-9]+", text)
    spelled = [OTHER_WORDS.get(word, word) for word in found if word not in MAKERS]
    return (*spelled[:1], *(f"{w}gb" if re.fullmatch(r"\d{1,3}", w) else w for w in spelled[1:]))


def _may_be_left_out(word: str) -> bool:
    return word in FORMS or re.fullmatch(SIZE, word) is not None


def _telling(found: tuple[str, ...]) -> frozenset[str]:
    """The words that tell a card from others."""
    return frozenset(word for word in found if not _may_be_left_out(word))


def _names(row: Row) -> tuple[str, ...]:
    return (row["name"], *row.get("aliases", ()), row["title"])


@cache
def _joined() -> tuple[tuple[Row, str], ...]:
    """Each card with all its names in one text, in lower case, without what separates words."""
    separators = str.maketrans("", "", "- ")
    return tuple(
        (row, "\n".join(_names(row)).lower().translate(separators)) for row in rows("gpus")
    )


def _parts(asked: tuple[str, ...]) -> tuple[str, ...]:
    """What the names of the cards that words mean have: words with numbers, and sizes' numbers."""
    parts = re.findall(r"\d+(?=gb\b)|[a-z]*\d[a-z0-9]*", " ".join(asked))
    return tuple(dict.fromkeys(parts))


@lru_cache(maxsize=64)
def _with_parts(*parts: str) -> tuple[Row, ...]:
    """The cards whose names have some parts: to spell the names of all takes long."""
    return tuple(row for row, text in _joined() if all(one in text for one in parts))


@lru_cache(maxsize=64)
def _spelled(*parts: str) -> dict[str, Row]:
    """Each whole name, alias and title in one spelling, and its card, of those with parts."""
    cards: dict[str, Row] = {}
    for row in _with_parts(*parts):
        for name in _names(row):
            cards.setdefault("".join(words(name)), row)
    return cards


@lru_cache(maxsize=64)
def _word_sets(*parts: str) -> tuple[tuple[Row, frozenset[str], frozenset[str]], ...]:
    """Each card with parts, the telling words of its name, and all of its name and title."""
    found = _with_parts(*parts)
    cards = ((row, words(row["name"]), words(row["title"])) for row in found)
    return tuple((row, _telling(name), frozenset({*name, *title})) for row, name, title in cards)


@lru_cache(maxsize=1024)
def meant(text: str) -> tuple[Row, ...]:
    """The cards that a text can mean, the one with the least memory first; empty where none is.

    `a100|l40s` means the cards of both; each part must mean one.
    """
    if EITHER in text:
        parts = [meant(part) for part in text.split(EITHER)]
        either = {row["name"]: row for part in parts for row in part}
        return _smallest_first(list(either.values())) if all(parts) else ()
    whole = named("gpus", text)
    if whole is not None:
        return (whole,)
    asked = words(text)
    named_parts = _parts(asked)
    return _found(asked, *named_parts) or (_found(asked) if named_parts else ())


def _found(asked: tuple[str, ...], *parts: str) -> tuple[Row, ...]:
    """The cards that words mean, of those whose names have some parts."""
    exact = _spelled(*parts).get("".join(asked))
    if exact is not None:
        return (exact,)
    telling, extra = _telling(asked), frozenset(filter(_may_be_left_out, asked))
    fit = [(row, own) for row, own, known in _word_sets(*parts) if extra <= known]
    found = [row for row, own in fit if own == telling]
    if not found and any(map(_has_number, telling)):
        found = [row for row, own in fit if _is_part(telling, own)]
    return _smallest_first(found)


def _smallest_first(found: list[Row]) -> tuple[Row, ...]:
    return tuple(sorted(found, key=lambda row: int(row["memory_bytes"])))


def _has_number(word: str) -> bool:
    return any(map(str.isdigit, word))


def _is_part(telling: frozenset[str], own: frozenset[str]) -> bool:
    """Whether telling words are a part of a card's, and those left out do not mean another card."""
    return not (own - telling) & ANOTHER and all(any(_begins(w, o) for o in own) for w in telling)


def _begins(word: str, whole: str) -> bool:
    """Whether a word is another, or its beginning before a letter: mi300 of mi300x."""
    return whole == word or (whole.startswith(word) and whole[len(word)].isalpha())


def find_card(text: str | int) -> Row | None:
    """The card that a text means; of several the one with the least memory."""
    return next(iter(meant(str(text))), None)


def same_number(text: str) -> list[str]:
    """The names of cards that have a number of the text: 4090 of `4090 foo`."""
    numbers = {n for word in _telling(words(text)) for n in re.findall(r"\d{2,}", word)}
    return [
        row["name"]
        for row, own, _ in _word_sets()
        if numbers & {n for word in own for n in re.findall(r"\d{2,}", word)}
    ]


def family(text: str) -> list[str]:
    """The names of cards that have every word of a text: `jetson`, `mig`, `laptop`."""
    asked = frozenset(words(text))
    if not asked:
        asked = frozenset(re.findall("[a-z]+", text.lower()))
        return [r["name"] for r in rows("gpus") if asked <= set(r["name"].split("-"))]
    return [row["name"] for row, _, known in _word_sets() if asked <= known]
