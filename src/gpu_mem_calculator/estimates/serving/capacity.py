"""How many sequences fit at which context.

On a server sequences share the cache pool; with transformers they share the whole card.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from msgspec import Struct

from ...run.served import ServerMemory
from ..calculator import Estimate
from .batch_bytes import Lines, batch_lines

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
