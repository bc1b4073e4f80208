"""How many elements one rank keeps of parameters that are spread over a data-parallel group."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

from ...ledger.num import Num, ceil_div, choose, holds, larger, smaller


def padded(elements: Num, ranks: Num) -> Num:
    """Elements of a flat buffer of stages 1 and 2: the next multiple of 2 × ranks.

    deepspeed 0.19.8 zero/stage_1_and_2.py:387,441 (nccl_start_alignment_factor is 2).
    """
    return ceil_div(elements, 2 * ranks) * 2 * ranks


def slice_elements(elements: Num, ranks: Num) -> Num:
    """One rank's slice of the flat buffer of stages 1 and 2."""
    return padded(elements, ranks) // ranks


def shard_elements(counts: Mapping[int, Num], ranks: Num) -> Num:
    """Elements on one rank where every parameter is cut by itself (stage 3): Σ ceil(n / ranks).

    deepspeed 0.19.8 zero/partition_parameters.py:1690,1817. `counts`: parameters of each size.
    """
    total: Num = 0
    for size, times in counts.items():
        total = total + times * ceil_div(size, ranks)
    return total


def owned_elements(runs: Iterable[tuple[tuple[int, ...], Num]], local: Num) -> Num:
    """Elements of every parameter that starts in the first rank's slice, whole.

    deepspeed 0.19.8 zero/stage_1_and_2.py:2579 (params_in_partition): stage 2 keeps the whole
    gradient of a parameter that reaches into the slice. Rank 0's slice starts with the first
    parameter, so this is the first prefix of whole parameters that covers the slice. `runs`
    are (sizes of one unit, units) in the optimizer's order.
    """
    total: Num = 0
    start: Num = 0
    for sizes, units in runs:
        unit = sum(sizes)
        if not unit:
            continue
        left = larger(local - start, 0)
        whole = smaller(larger(left - 1, 0) // unit, units)
        inside = choose(whole < units, left - whole * unit, 0)
        part: Num = 0
        offset = 0
        for size in sizes:
            part = part + size * holds(inside > offset)
            offset += size
        total = total + whole * unit + part
        start = start + units * unit
    return total


def largest_owned(runs: Iterable[tuple[tuple[int, ...], Num]], local: Num) -> Num:
    """The longest stretch of one parameter inside the first rank's slice.

    deepspeed 0.19.8 zero/stage_1_and_2.py:1770 (grad_position): the part of a parameter that
    overlaps the slice. Of equal units the first reaches furthest into it.
    """
    most: Num = 0
    start: Num = 0
    for sizes, units in runs:
        offset = start
        for size in sizes:
            inside = smaller(size, larger(local - offset, 0))
            most = larger(most, inside * holds(units > 0))
            offset = offset + size
        start = start + units * sum(sizes)
    return most


def first_bucket(runs: Iterable[tuple[tuple[int, ...], int]], limit: int) -> int:
    """Elements in the first bucket when gradients go in in the optimizer's order (stage 1).

    deepspeed 0.19.8 zero/stage_1_and_2.py:973, :1424. 0 where the first one is larger than it.
    """
    filled = 0
    for sizes, units in runs:
        unit = sum(sizes)
        whole = min(units, (limit - filled) // unit) if unit else units
        filled += whole * unit
        if whole == units:
            continue
        for size in sizes:
            if filled + size > limit:
                return filled
            filled += size
    return filled


@lru_cache(maxsize=256)
def reduced_in_order(
    runs: tuple[tuple[tuple[int, ...], int], ...], limit: int, local: int, width: int, *,
    offload: bool,
) -> int:  # fmt: skip
    """Bytes that stage 1 needs beside all gradients and the bucket, when backward is over.

    deepspeed 0.19.8 zero/stage_1_and_2.py:973, :1424, :2207. Gradients move into the bucket in the
    optimizer's order, and free their own memory; a full bucket is copied, unless all of it goes to
    one rank; then the first rank's own gradients are laid out, or copied to fp64 for offload. A
    parameter that is larger than the bucket stays where it is until then.
    """
    extra = most = begin = 0
    owned = width * int(owned_elements(runs, local))
    inside: list[tuple[int, int]] = []

    def reduce() -> None:
        nonlocal extra, most, owned
        filled = sum(size for _, size in inside)
        several = {at // local for at, size in inside} | {(a + n - 1) // local for a, n in inside}
        most = max(most, extra + width * filled * (len(several) > 1))
        for at, size in inside:
            if at < local and offload:
                most = max(most, extra + 8 * min(size, local - at))
            elif at < local:
                extra, owned = extra + owned, 0
                most = max(most, extra)
        extra -= width * sum(size for _, size in inside if size > limit)
        inside.clear()

    for sizes, units in runs:
        for size in sizes * units:
            if sum(n for _, n in inside) + size > limit:
                reduce()
            if size <= limit:
                extra -= width * size
            elif offload:
                most = max(most, extra + width * size)
            inside.append((begin, size))
            begin += size
    reduce()
    return most
