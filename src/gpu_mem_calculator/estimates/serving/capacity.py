"""How many sequences fit at which context.

On a server sequences share the cache pool; with transformers they share the whole card. Its bytes
by context and batch follow from a few ledgers: at each instant of a context they are linear in the
batch. Along contexts they are quadratic (keys and values grow with the context, masks with its
square) as long as no window begins to slide. Three contexts determine the parabola and two more
check it; where the check fails, each half of the contexts gets its own parabola.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from ...run.served import ServerMemory
from ...runfile.resolve.resolved_run import ResolvedRun
from ..calculator import STEP, Estimate

if TYPE_CHECKING:
    from fractions import Fraction

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
    from fractions import Fraction

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


CONTEXTS = tuple(2**power for power in range(10, 21))
CONCURRENCIES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
AT_ONCE = 10**6  # sequences, where only memory limits them
Used = Callable[[int], int]  # bytes that a number of sequences takes
Capacity = tuple[Used, int, int]  # bytes taken, bytes there are, sequences that may run at once


class CapacityMatrix(Struct, frozen=True, kw_only=True):
    """Context by concurrency: the share of the memory for sequences that is taken, row by row.

    Above 1 it does not fit; None where the server would not run so many at once. `most` is the
    largest number of sequences at each context. With data parallelism every replica has as many.
    """

    contexts: tuple[int, ...]
    concurrencies: tuple[int, ...]
    shares: tuple[tuple[float | None, ...], ...]
    most: tuple[int, ...]


def matrix(
    estimate: Estimate, contexts: Sequence[int] = (), concurrencies: Sequence[int] = ()
) -> CapacityMatrix:
    """The table of contexts and sequences; the defaults are powers of two up to the longest."""
    longest = _longest(estimate)
    wanted = tuple(contexts) or (*(c for c in CONTEXTS if c < longest), longest)
    counts = tuple(concurrencies) or CONCURRENCIES
    rows, most = [], []
    for used, limit, at_once in _capacities(estimate, wanted):
        each = [_share(used(count), limit) for count in counts]
        rows.append(
            tuple(
                share if count <= at_once else None
                for count, share in zip(counts, each, strict=True)
            )
        )
        most.append(_most(used, limit, at_once))
    return CapacityMatrix(
        contexts=wanted, concurrencies=counts, shares=tuple(rows), most=tuple(most)
    )


def _share(used: int, limit: int) -> float:
    """The share of `limit` bytes that is used; 0 for models that cache nothing."""
    if limit > 0:
        return used / limit
    return float("inf") if used else 0.0


def _longest(estimate: Estimate) -> int:
    if estimate.served:
        return estimate.served[0].max_seq_len
    run = estimate.resolved.run
    return int(run.options.get("max_seq_len") or run.arch.max_seq_len)


def _most(used: Used, limit: int, at_once: int) -> int:
    """The largest number of sequences that fits."""
    low, high = 0, at_once
    while low < high:
        middle = (low + high + 1) // 2
        if used(middle) <= limit:
            low = middle
        else:
            high = middle - 1
    return low


def _capacities(estimate: Estimate, contexts: Sequence[int]) -> Iterator[Capacity]:
    """The capacity at each context."""
    if estimate.served:
        longest = _longest(estimate)
        for context in contexts:
            used, limit, at_once = _pool_capacity(estimate.served, context)
            yield used, limit, at_once if context <= longest else 0
        return
    resolved = estimate.resolved
    outside = sum(size for _, size, _ in resolved.outside_torch)
    for each in batch_lines(resolved, contexts):
        used = partial(_card_bytes, each, outside)
        yield used, resolved.hardware.memory_bytes, AT_ONCE


def _pool_capacity(served: Sequence[ServerMemory], context: int) -> Capacity:
    """The capacity of a server's pool at a context: that of the stage with the least."""
    tightest = max(served, key=lambda one: _share(one.sequence_bytes(context), one.room_bytes))
    each = tightest.sequence_bytes(context)
    return lambda count: count * each, tightest.room_bytes, tightest.most_sequences


def _card_bytes(lines: Lines, outside: int, count: int) -> int:
    """Bytes of `count` sequences under transformers: the highest instant, and outside torch."""
    return outside + max((first + (count - 1) * more for first, more in lines), default=0)


class ContextUsers(Struct, frozen=True):
    """Whole sequences of `context` tokens that run concurrently on all replicas."""

    context: int
    users: int


def users_by_context(estimate: Estimate, table: CapacityMatrix) -> list[ContextUsers]:
    """The users of each context of a table; none where the server does not start.

    With transformers there are none: the table counts tensors, and the allocator needs more.
    """
    serving = estimate.result.serving
    if serving is None or serving.problem:
        return []
    rows = zip(table.contexts, table.most, strict=True)
    return [ContextUsers(context, serving.replicas * most) for context, most in rows]
