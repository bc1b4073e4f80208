"""The model that a size alone means: `8b` is today's model of that size, `7` the nearest known."""

from __future__ import annotations

import math
import re

from msgspec import Struct

from ... import catalog
from ...catalog.model_names import meaning
from ..text.counts import parameter_count
from ..text.errors import InputError

NEAR = 0.10  # a size within this share of a well-known model's means that model
SCALED = 10  # the most times that a well-known model is scaled, up or down
BILLIONS = 100_000  # a plain number up to this one means billions
_SIZE = r"[0-9.]+(e[0-9]+)?[kmbgt]?"
_PLAIN = r"[0-9]*\.?[0-9]+"


class SizedModel(Struct, frozen=True):
    """The preset that a size means, the parameter count to scale it to, and a sentence."""

    name: str
    num_parameters: int | None
    note: str


def sized_model(text: str) -> SizedModel | None:
    """The model of a size such as 7, 8b or 350M; None for a name."""
    text = text.strip()
    if not re.fullmatch(_SIZE, text, re.IGNORECASE):
        return None
    size = _checked(text, _count(text))
    today = meaning(text)
    row = today or nearest_by_size(size)
    if today is None and abs(size - row["num_parameters"]) > NEAR * row["num_parameters"]:
        scaled = f"the layers of {row['title']}, with its parameter bytes scaled"
        return SizedModel(row["name"], size, f"{text!r} is far from any known model: {scaled}.")
    note = f"{text!r} interpreted as {row['title']} (closest known model)."
    return SizedModel(row["name"], None, note)


def _count(text: str) -> int:
    """The parameter count of a size; 0 where it is none."""
    billions = re.fullmatch(_PLAIN, text) and float(text) <= BILLIONS
    try:
        return parameter_count(f"{text}B" if billions else text)
    except InputError:
        return 0


def _checked(text: str, size: int) -> int:
    """The size itself; refused where no well-known model can be scaled to it."""
    least, most = _limits()
    if least <= size <= most:
        return size
    means = f"{text!r} means {size:,} parameters" if size else f"{text!r} is no size"
    limits = f"{math.ceil(least / 1e6):,}M to {most // 10**12}T"
    raise InputError(f"{means}; give a size from {limits}, such as 7B, or a model's name")


def _limits() -> tuple[int, int]:
    """The smallest and the largest size that a well-known model is scaled to."""
    counts = [row["num_parameters"] for row in _well_known()]
    return math.ceil(min(counts) / SCALED), max(counts) * SCALED


def nearest_by_size(count: int) -> catalog.Row:
    """The catalogue row of the well-known model whose parameter count is nearest in proportion."""
    return min(_well_known(), key=lambda row: abs(math.log(row["num_parameters"] / count)))


def _well_known() -> list[catalog.Row]:
    return [row for row in catalog.rows("index") if row.get("quick")]
