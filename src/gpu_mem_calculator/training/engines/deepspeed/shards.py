"""Elements of one rank's shards: parameters are sharded over a data-parallel group."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ....ledger.num import Num, ceil_div, choose, holds, larger, smaller
from ....ledger.remember import remembered


def padded_elements(elements: Num, ranks: Num) -> Num:
    """Elements of a flat buffer of stages 1 and 2: the next multiple of 2 × ranks.

    deepspeed 0.19.8 zero/stage_1_and_2.py:387,441 (nccl_start_alignment_factor is 2).
    """
    return ceil_div(elements, 2 * ranks) * 2 * ranks


def slice_elements(elements: Num, ranks: Num) -> Num:
    """Elements of one rank's slice of the flat buffer of stages 1 and 2."""
    return padded_elements(elements, ranks) // ranks


def shard_elements(counts: Mapping[int, Num], ranks: Num) -> Num:
    """Elements on one rank where every parameter is sharded alone (stage 3): Σ ceil(n / ranks).

    deepspeed 0.19.8 zero/partition_parameters.py:1690,1817. `counts`: number of
    parameters of each size.
    """
    return sum(times * ceil_div(size, ranks) for size, times in counts.items())


def owned_elements(runs: Iterable[tuple[tuple[int, ...], Num]], local: Num) -> Num:
    """Elements of all parameters that start in the first rank's slice, each in full.

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
    """Elements of the longest part of one parameter inside the first rank's slice.

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


def sub_groups(shards: Iterable[int], limit: int) -> list[list[int]]:
    """The shards of each sub-group, closed when it reaches the limit; zero/stage3.py:1211."""
    groups: list[list[int]] = [[]]
    filled = 0
    for shard in shards:
        if filled >= limit:
            groups.append([])
            filled = 0
        groups[-1].append(shard)
        filled += shard
    return groups


@remembered(256, always=True)
def largest_sub_groups(
    runs: tuple[tuple[tuple[int, ...], int], ...], ranks: int, limit: int, flat_width: int
) -> tuple[int, int, int]:
    """Elements of the largest sub-group; of the one whose gradients take most bytes when they are
    cast; and of that one's flat copy, which one parameter alone does not need.
    """
    shards = (-(-size // ranks) for sizes, units in runs for _ in range(units) for size in sizes)
    groups = sub_groups(shards, limit)
    several = [(sum(group), sum(group) * int(len(group) > 1)) for group in groups]
    cast, flat = max(several, key=lambda one: 4 * one[0] + flat_width * one[1])
    return max(size for size, _ in several), cast, flat
