"""User errors: one sentence for each problem, all problems at once; and how sentences are printed
to stderr."""

from __future__ import annotations

import sys

from ...ledger.quoting import MOST_QUOTED
from ...ledger.quoting import quoted as quoted
from ...ledger.secrets import hide, hide_random
from ...run.problems import Problem, keys_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

MOST_CHARACTERS = 400  # of a sentence
MOST_PROBLEMS = 20  # sentences on one file
NEAR = 0.75  # the least similarity of a word that is suggested
STDERR_PREFIX = "gpu-mem-calc: "  # printed in front of each sentence on stderr


class InputError(ValueError):
    """Bad input. `problems` has one sentence for each thing that is wrong, without secrets; `keys`
    has the keys of the run file that each is about.
    """

    exit_code = 2  # of a command that it ends

    def __init__(self, problems: str | Iterable[str]) -> None:
        sentences = [problems] if isinstance(problems, str) else list(problems)
        self.problems = [_short(hide_random(hide(str(sentence)))) for sentence in sentences]
        self.keys = [keys_of(sentence) for sentence in sentences]
        super().__init__("; ".join(self.problems))

    def _render_traceback_(self) -> list[str]:
        """What a notebook prints: the sentences, without the code that they come from."""
        return [f"{type(self).__name__}: {self}"]


class MissingExtraError(InputError):
    """What is asked for needs packages that are not installed; a service answers with 501."""


class OutputError(InputError):
    """Output that cannot be written: a full disk, a closed stream."""

    exit_code = 74  # EX_IOERR of sysexits.h


def _short(problem: str) -> str:
    """Shorten a sentence that quotes a long value to its beginning and its end."""
    if len(problem) <= MOST_CHARACTERS:
        return problem
    return f"{problem[: MOST_CHARACTERS // 2]}...{problem[-MOST_CHARACTERS // 3 :]}"


def printable(text: str, kept: str = "") -> str:
    """A text that is safe to print on a terminal.

    Control and formatting characters, which a server's answer or a model's name may contain, are
    escaped as in JSON; characters in `kept` stay.
    """
    if text.isprintable():
        return text
    import json

    return "".join(
        char if char in kept or not _controls(char) else json.dumps(char)[1:-1] for char in text
    )


def _controls(char: str) -> bool:
    """Whether a character can control a terminal, reorder or break a line, or is unassigned:
    Unicode's categories C (other), Zl and Zp (separators of lines and paragraphs).
    """
    from unicodedata import category

    return not char.isprintable() and category(char) != "Zs"


def print_to_stderr(*sentences: str, begins: str = STDERR_PREFIX) -> None:
    """Print sentences to stderr, one on each line, each after `begins`."""
    try:
        for sentence in sentences:
            print(f"{begins}{printable(hide(sentence))}", file=sys.stderr, flush=True)
    except BrokenPipeError:  # a reader that has left
        pass
    except OSError as error:
        raise OutputError(f"standard error cannot be written: {error.strerror}") from None


class Problems(list[str]):
    """The problems collected so far, to be raised together."""

    def attempt(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function. Where it raises InputError, collect its problems and return None."""
        try:
            return function(*args)
        except InputError as error:
            both = zip(error.problems, error.keys, strict=True)
            self.extend(Problem(sentence, *keys) for sentence, keys in both)
            return None


def first_problems(problems: Iterable[str]) -> list[str]:
    """The first problems, and a last sentence where there are more."""
    from itertools import islice

    first = list(islice(problems, MOST_PROBLEMS + 1))
    if len(first) <= MOST_PROBLEMS:
        return first
    return [*first[:-1], "there are more problems; correct these first"]


def nearest(word: str, words: Iterable[str]) -> str:
    """`; did you mean 'x'?` where a known word is similar, else an empty text."""
    import difflib

    if len(str(word)) > MOST_QUOTED:
        return ""
    known = {one.lstrip("-"): one for one in words}
    matches = difflib.get_close_matches(str(word).lstrip("-"), known, n=1, cutoff=NEAR)
    return f"; did you mean {known[matches[0]]!r}?" if matches else ""
