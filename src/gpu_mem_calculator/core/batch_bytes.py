"""What a run without a pool takes, by context and batch, from a few of its ledgers.

At each instant of a context the bytes are a line in the batch. Along contexts they are a parabola
(keys and values grow with the context, masks with its square) as long as no window begins to slide:
three contexts make it, two more prove it, and where they do not each half has its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from msgspec.structs import replace

from .calculator import STEP
from .resolved_run import ResolvedRun

Line = tuple[int, int]  # bytes of one sequence, and of each one more
Lines = tuple[Line, ...]  # by instant
FEW = 5  # contexts: what a parabola and its proof take


def lines(resolved: ResolvedRun, contexts: Sequence[int]) -> list[Lines]:
    """For each context, the line of every instant."""
    known: dict[int, Lines] = {}
    _fill(resolved, sorted(set(contexts)), known)
    return [known[context] for context in contexts]


def _fill(resolved: ResolvedRun, wanted: Sequence[int], known: dict[int, Lines]) -> None:
    """One parabola for a stretch of contexts, or one for each half of it."""
    last = len(wanted) - 1
    places = {0, last // 2, last, last // 4, 3 * last // 4} if last >= FEW else range(last + 1)
    for place in places:
        if wanted[place] not in known:
            known[wanted[place]] = own_lines(resolved, wanted[place])
    if last < FEW:
        return
    three = {one: known[one] for one in (wanted[0], wanted[last // 2], wanted[last])}
    proof = (wanted[last // 4], wanted[3 * last // 4])
    if all(_parabola(three, context) == known[context] for context in proof):
        known.update({c: _parabola(three, c) for c in wanted if c not in known})
    else:
        _fill(resolved, wanted[: last // 2 + 1], known)
        _fill(resolved, wanted[last // 2 :], known)


def own_lines(resolved: ResolvedRun, context: int) -> Lines:
    """The ledgers of one sequence and of two."""
    new = min(int(resolved.run.new_tokens), context - 1)
    heights = []
    for batch in (1, 2):
        run = replace(resolved.run, batch=batch, seq=context - new, new_tokens=new)
        ledger = resolved.engine.ledger(run)
        at = ledger.heights()
        heights.append([int(at[i.name]) for i in ledger.instants if i.phase in STEP])
    return tuple((one, two - one) for one, two in zip(*heights, strict=True))


def _parabola(three: dict[int, Lines], context: int) -> Lines:
    """The parabolas through three contexts, at another; nothing where instants differ."""
    if len({len(each) for each in three.values()}) > 1:
        return ()
    shares = []
    for one in three:
        share = Fraction(1)
        for other in three:
            if other != one:
                share *= Fraction(context - other, one - other)
        shares.append(share)
    return tuple(
        (_sum(shares, [line[0] for line in each]), _sum(shares, [line[1] for line in each]))
        for each in zip(*three.values(), strict=True)
    )


def _sum(shares: Sequence[Fraction], values: Sequence[int]) -> int:
    return round(sum(share * value for share, value in zip(shares, values, strict=True)))
