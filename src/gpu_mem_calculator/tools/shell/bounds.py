"""Bounds on a script: its size, its nesting, and the work of reading it."""

from __future__ import annotations

from ...runfile.text.errors import InputError

MOST_CHARACTERS = 250_000  # of a script
MOST_WORK = 1_000_000  # characters that are looked at, over all expansions and loops
WORK_OF_SPECIAL, WORK_OF_TOKEN, WORK_OF_COMMAND = 4, 25, 150  # characters that take as long
MOST_DEPTH = 40  # of commands in commands and of expansions in expansions
MOST_VALUE = 100_000  # characters of one variable or word


class Work:
    """Counts characters that were looked at; too many end the reading with a sentence."""

    def __init__(self, most: int = MOST_WORK) -> None:
        self.left = most

    def spend(self, amount: int) -> None:
        """Count some work."""
        self.left -= amount
        if self.left < 0:
            raise InputError(
                "the shell script takes too long to read: its loops or variables grow too much; "
                "check its last command instead"
            )


def check_size(text: str) -> None:
    """Refuse a script that is too long."""
    _check(len(text), MOST_CHARACTERS, "the shell script has more than {:,} characters")


def check_depth(depth: int) -> None:
    """Refuse what is nested too deeply."""
    _check(depth, MOST_DEPTH, "the shell script is nested more than {} levels deep")


def checked_value(text: str) -> str:
    """A value that is not too long."""
    _check(len(text), MOST_VALUE, "a variable of the shell script grows beyond {:,} characters")
    return text


def _check(size: int, most: int, sentence: str) -> None:
    if size > most:
        raise InputError(f"{sentence.format(most)}; check the command that it starts instead")
