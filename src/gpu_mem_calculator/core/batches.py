"""What a run without a pool takes, by context and batch: its ledger, of many runs at once.

At each instant of a context the bytes are a line in the batch: one sequence and two make it.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from .calculator import STEP
from .resolved import Resolved

Line = tuple[int, int]  # bytes of one sequence, and of each one more
Lines = tuple[Line, ...]  # by instant


def lines(resolved: Resolved, contexts: Sequence[int]) -> list[Lines]:
    """For each context, the line of every instant."""
    run, known = resolved.run, dict[int, Lines]()
    windows = sorted({window for window in run.arch.windows if window})
    groups: dict[tuple[int, ...], list[int]] = {}
    for context in sorted(set(contexts)):  # a kernel is chosen by whether a window slides
        new = min(int(run.new_tokens), context - 1)
        sides = (sum(length >= window for length in (context - new, context - 1, context))
                 for window in windows)  # fmt: skip
        groups.setdefault((new, *sides), []).append(context)
    for (new, *_), alike in groups.items():
        _fill(resolved, alike, new, known)
    return [known[context] for context in contexts]


def _fill(resolved: Resolved, contexts: list[int], new: int, known: dict[int, Lines]) -> None:
    """All contexts in one ledger, or in two where their kernels differ."""
    try:
        known.update(zip(contexts, _together(resolved, contexts, new), strict=True))
    except ValueError:  # one choice for all of them there is not
        if len(contexts) == 1:
            raise
        half = len(contexts) // 2
        _fill(resolved, contexts[:half], new, known)
        _fill(resolved, contexts[half:], new, known)


def _together(resolved: Resolved, contexts: list[int], new: int) -> list[Lines]:
    """One sequence of each context, and two."""
    import numpy as np

    count = len(contexts)
    batch, seq = np.repeat([1, 2], count), np.array(contexts * 2) - new
    run = replace(resolved.run, batch=batch, seq=seq, new_tokens=new)
    ledger = resolved.engine.ledger(run)
    at = ledger.heights()
    rows = [np.broadcast_to(np.asarray(at[i.name]), 2 * count)
            for i in ledger.instants if i.phase in STEP]  # fmt: skip
    one, two = np.split(np.reshape(rows, (len(rows), 2 * count)), 2, axis=1)
    return [tuple(zip(first.tolist(), more.tolist(), strict=True))
            for first, more in zip(one.T, (two - one).T, strict=True)]  # fmt: skip
