"""Everything a user can get wrong ends here: one sentence a problem, all problems at once."""

from __future__ import annotations

from collections.abc import Iterable


class InputError(ValueError):
    """Bad input. `problems` has one sentence for each thing that is wrong."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = list(problems)
        super().__init__("; ".join(self.problems))


def nearest(word: str, words: Iterable[str]) -> str:
    """` (did you mean 'x'?)` where some known word is close, else nothing."""
    import difflib

    found = difflib.get_close_matches(str(word), list(words), n=1, cutoff=0.6)
    return f"; did you mean {found[0]!r}?" if found else ""


def divisors_near(number: int, wanted: int) -> str:
    """The divisors of a number on both sides of a wanted one: `2 or 4`."""
    divisors = [d for d in range(1, number + 1) if number % d == 0] if number < 10**6 else [1]
    below = [d for d in divisors if d < wanted]
    above = [d for d in divisors if d > wanted]
    found = [str(d) for d in (*below[-1:], *above[:1])]
    return " or ".join(found)
