"""Everything a user can get wrong ends here: one sentence a problem, all problems at once; and how
a sentence is told beside the answer."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

MOST = 400  # characters of a sentence
SAYS = "gpu-mem-calc: "  # how each begins that is told


class InputError(ValueError):
    """Bad input. `problems` has one sentence for each thing that is wrong."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = [_short(problem) for problem in problems]
        super().__init__("; ".join(self.problems))


def _short(problem: str) -> str:
    """A sentence that quotes a page keeps its beginning and its end."""
    return problem if len(problem) <= MOST else f"{problem[: MOST // 2]}...{problem[-MOST // 3 :]}"


def tell(*sentences: str) -> None:
    """Sentences beside the answer, a line each on stderr."""
    for sentence in sentences:
        print(f"{SAYS}{sentence}", file=sys.stderr, flush=True)


class Problems(list[str]):
    """What is wrong so far, so that all of it can be told at once."""

    def attempt(self, function: Callable[..., Any], *args: Any) -> Any:
        """What a function returns; None where it has a problem, which is kept."""
        try:
            return function(*args)
        except InputError as error:
            self.extend(error.problems)
            return None


def nearest(word: str, words: Iterable[str]) -> str:
    """` (did you mean 'x'?)` where some known word is close, else nothing."""
    import difflib

    found = difflib.get_close_matches(str(word), list(words), n=1, cutoff=0.6)
    return f"; did you mean {found[0]!r}?" if found else ""
