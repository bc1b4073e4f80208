"""Everything a user can get wrong ends here: one sentence a problem, all problems at once; and how
a sentence is told beside the answer."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from typing import Any
from unicodedata import category

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


def printable(text: str, kept: str = "") -> str:
    """A text for a terminal: control and formatting characters, which a server's answer or a
    model's name may have, as JSON escapes them; those in `kept` stay.
    """
    if text.isprintable():
        return text
    return "".join(
        char if char in kept or not _controls(char) else json.dumps(char)[1:-1] for char in text
    )


def _controls(char: str) -> bool:
    """Whether a character can steer a terminal, reorder a line, begin one, or is none at all:
    Unicode's categories C (other), Zl and Zp (separators of lines and paragraphs).
    """
    return not char.isprintable() and category(char) != "Zs"


def tell(*sentences: str, begins: str = SAYS) -> None:
    """Sentences beside the answer, a line each on stderr."""
    for sentence in sentences:
        print(f"{begins}{printable(sentence)}", file=sys.stderr, flush=True)


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
