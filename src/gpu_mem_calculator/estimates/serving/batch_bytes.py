"""Bytes of an inference run without a cache pool, by context and batch, from a few of its ledgers.

At each instant of a context the bytes are linear in the batch. Along contexts they are quadratic
(keys and values grow with the context, masks with its square) as long as no window begins to slide.
Three contexts determine the parabola and two more check it; where the check fails, each half of the
contexts gets its own parabola.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from msgspec.structs import replace

from ...runfile.resolve.resolved_run import ResolvedRun
from ..calculator import STEP

Line = tuple[int, int]  # bytes of one sequence, and of each further one
Lines = tuple[Line, ...]  # one for each instant
PARABOLA_CONTEXTS = 5  # three that determine a parabola, two that check it


def batch_lines(resolved: ResolvedRun, contexts: Sequence[int]) -> list[Lines]:
    """For each context, the bytes at every instant as a line in the batch."""
    known: dict[int, Lines] = {}
    _fill_contexts(resolved, sorted(set(contexts)), known)
    return [known[context] for context in contexts]


def _fill_contexts(resolved: ResolvedRun, contexts: Sequence[int], known: dict[int, Lines]) -> None:
    """Add the lines of sorted `contexts` to `known`: by one parabola, or by one for each half."""
    last = len(contexts) - 1
    few = last < PARABOLA_CONTEXTS
    for index in range(last + 1) if few else {0, last // 2, last, last // 4, 3 * last // 4}:
        if contexts[index] not in known:
            known[contexts[index]] = context_lines(resolved, contexts[index])
    if few:
        return
    three = {one: known[one] for one in (contexts[0], contexts[last // 2], contexts[last])}
    checks = (contexts[last // 4], contexts[3 * last // 4])
    if all(_parabola(three, context) == known[context] for context in checks):
        known.update({c: _parabola(three, c) for c in contexts if c not in known})
    else:
        _fill_contexts(resolved, contexts[: last // 2 + 1], known)
        _fill_contexts(resolved, contexts[last // 2 :], known)


def context_lines(resolved: ResolvedRun, context: int) -> Lines:
    """The lines of one context, from the ledgers of one sequence and of two."""
    new = min(int(resolved.run.generated), context - 1)
    totals = []
    for batch in (1, 2):
        run = replace(resolved.run, batch=batch, seq=context - new, new_tokens=new)
        ledger = resolved.engine.ledger(run)
        heights = ledger.heights()
        totals.append([int(heights[i.name]) for i in ledger.instants if i.phase in STEP])
    return tuple((one, two - one) for one, two in zip(*totals, strict=True))


def _parabola(three: dict[int, Lines], context: int) -> Lines:
    """The parabolas through three contexts, evaluated at another one by Lagrange's formula.

    Empty where the contexts have different numbers of instants.
    """
    if len({len(each) for each in three.values()}) > 1:
        return ()
    weights = []
    for one in three:
        weight = Fraction(1)
        for other in three:
            if other != one:
                weight *= Fraction(context - other, one - other)
        weights.append(weight)
    return tuple(
        (
            _weighted_sum(weights, [first for first, _ in lines]),
            _weighted_sum(weights, [further for _, further in lines]),
        )
        for lines in zip(*three.values(), strict=True)
    )


def _weighted_sum(weights: Sequence[Fraction], values: Sequence[int]) -> int:
    return round(sum(weight * value for weight, value in zip(weights, values, strict=True)))
