"""Remedies as text: what changes, what that saves and costs, and a command to paste."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from ..ledger.units import GIB
from .lines import WIDTH, Line, command, gib, wrap_lines

if TYPE_CHECKING:
    from ..advice.training.remedies import Remedy

FITS, MAY_FIT = "fits with ", "may fit with "


class Commands(Struct, frozen=True):
    """Arguments of commands: the same run, its explanation, the run with each remedy, and the run
    in detail (by default the run with --long).
    """

    run: Sequence[str]
    explain: Sequence[str]
    remedies: Sequence[Sequence[str]] = ()
    detailed: Sequence[str] = ()


def remedy_words(remedy: Remedy) -> str:
    """What a remedy changes, saves and costs."""
    changes, cost = ", ".join(remedy.changes), f"; {remedy.cost}" if remedy.cost else ""
    return f"{changes}: {_saved(remedy)}{cost}"


def _saved(remedy: Remedy) -> str:
    """What a remedy saves of the tensors; allocator settings save fragmentation alone."""
    if remedy.saves_bytes <= GIB // 2:
        return "less fragmentation" if remedy.saves_bytes <= 0 else "saves less than 1 GiB"
    return f"saves {gib(remedy.saves_bytes, 0)} GiB"


def remedy_lines(remedy: Remedy, words: Sequence[str], width: int = WIDTH) -> Iterator[Line]:
    """The lines of a remedy with its whole cost."""
    yield from wrap_lines(label(remedy), remedy_words(remedy), width=width)
    yield from command("  ", ["gpu-mem-calc", *words], width)


def label(remedy: Remedy) -> str:
    """Whether the run certainly fits with a remedy."""
    return FITS if remedy.certain else MAY_FIT


def _short_words(remedy: Remedy, width: int) -> str:
    """What a remedy changes and saves, and those of its costs that fit on the line."""
    words = f"{', '.join(remedy.changes)}: {_saved(remedy)}"
    for cost in filter(None, remedy.cost.split("; ")):
        longer = f"{words}; {cost}"
        words = longer if len(longer) <= width else words
    return words


def short_remedy(
    remedy: Remedy, words: Sequence[str], most: int, width: int = WIDTH
) -> list[Line] | None:
    """A remedy in at most `most` lines: with the whole command, with what it adds to it, or without
    it, then without the last of its changes; None where that is too long.
    """
    begin = label(remedy)
    head = wrap_lines(begin, _short_words(remedy, width - len(begin)), width=width)
    settings = [word for one in remedy.settings for word in ("--set", one)]
    for indent, command_words in (("  ", ["gpu-mem-calc", *words]), ("  add: ", settings)):
        lines = [*head, *command(indent, command_words, width)]
        if len(lines) <= most:
            return lines
    for many in range(len(remedy.changes), 0, -1):
        left_out = ["…"] if many < len(remedy.changes) else []
        text = f"{', '.join([*remedy.changes[:many], *left_out])} (--long has the command)"
        lines = wrap_lines(begin, text, width=width)
        if len(lines) <= most:
            return lines
    return None
