"""The caps of a trial, from the words of `--tries` and a prediction."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from gpu_mem_calculator.runfile.text.errors import InputError

from .predict import Prediction

NO_CAP = "free"  # a run without a cap
# Word -> bytes; None where the prediction has no such figure.
WORDS: Mapping[str, Callable[[Prediction], int | None]] = {
    "needs": lambda found: found["needs_bytes"],
    "needs+margin": lambda found: (
        None if found["margin_bytes"] is None else found["needs_bytes"] + found["margin_bytes"]
    ),
    "allocated": lambda found: found["allocated_bytes"],
    "reserved": lambda found: found["reserved_bytes"],
    "card": lambda found: found.get("card_bytes"),
}


def check_words(words: Sequence[str]) -> None:
    """Raise for a word that is neither a figure of a prediction nor a factor of `needs`."""
    for word in words:
        if word not in (*WORDS, NO_CAP) and _factor(word) is None:
            known = ", ".join((*WORDS, NO_CAP))
            raise InputError(f"--tries {word}: use {known}, or a factor of needs such as 1.02")


def caps(words: Sequence[str], found: Prediction) -> dict[str, int | None]:
    """The cap of each word in bytes; None is no cap. Words without a figure are left out."""
    chosen: dict[str, int | None] = {}
    for word in words:
        factor = _factor(word)
        size = WORDS[word](found) if word in WORDS else int(found["needs_bytes"] * (factor or 0))
        if word == NO_CAP:
            chosen[word] = None
        elif size is not None:
            chosen[word] = size
    return chosen


def _factor(word: str) -> float | None:
    try:
        factor = float(word)
    except ValueError:
        return None
    return factor if 0 < factor < 100 else None
