"""Examples packed into rows, as TRL packs a data set."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence

BEST_FIT, SPLIT, WRAPPED = "bfd", "bfd_split", "wrapped"
TOGETHER = 1000  # examples that `datasets` gives to a function at once


def packed(lengths: Sequence[int], row: int, how: str) -> list[int]:
    """The tokens of each row, of at most `row` (trl 1.16.0 data_utils.py pack_dataset).

    - bfd: the longest example first, each into the row with the least room for it; longer ones are
      cut, with bfd_split into several
    - wrapped: rows are cut from one long text, and the last one is shorter
    """
    rows: list[int] = []
    for begin in range(0, len(lengths), TOGETHER):
        part = lengths[begin : begin + TOGETHER]
        if how == WRAPPED:
            whole, rest = divmod(sum(part), row)
            rows += [row] * whole + [rest] * bool(rest)
        else:
            rows += _best_fit([*_pieces(part, row, whole=how == BEST_FIT)], row)
    return rows


def _pieces(lengths: Sequence[int], row: int, *, whole: bool) -> Iterator[int]:
    for length in lengths:
        yield min(length, row)
        for begin in () if whole else range(row, length, row):
            yield min(row, length - begin)


def _best_fit(lengths: Sequence[int], row: int) -> list[int]:
    """Of rows with the same room, the one that has had it longest."""
    rows: list[int] = []
    room: list[tuple[int, int, int]] = []  # left in a row, when it was put here, the row
    for now, length in enumerate(sorted(lengths, reverse=True)):
        at = bisect_left(room, (length, -1, -1))
        left, _, number = room.pop(at) if at < len(room) else (row, 0, len(rows))
        if number == len(rows):
            rows.append(0)
        rows[number] += length
        if left > length:
            insort(room, (left - length, now, number))
    return rows
