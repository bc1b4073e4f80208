"""Why a run is refused: a sentence, and the keys of the run file that it is about."""

from __future__ import annotations


class Problem(str):
    """One sentence: the value, the rule, the nearest fix.

    `keys` are those whose change could help, such as `training.loss`; code decides by them, never
    by words of the sentence.
    """

    keys: tuple[str, ...]

    def __new__(cls, sentence: str, *keys: str) -> Problem:
        """The sentence about some keys."""
        problem = super().__new__(cls, sentence)
        problem.keys = keys
        return problem


def keys_of(sentence: str) -> tuple[str, ...]:
    """The keys that a sentence is about; none where nothing says them."""
    return sentence.keys if isinstance(sentence, Problem) else ()
