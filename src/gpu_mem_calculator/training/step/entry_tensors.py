"""The tensors of a ledger's entry."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from ...ledger.ledger import HEAD_GRADIENT, Entry


def tensor_bytes(entry: Entry, *, scaled: bool = False) -> list[int]:
    """Bytes of each tensor of an entry; they sum to the entry's.

    `scaled`: a given parameter count overrides the architecture's. It scales the entry's bytes, so
    the tensors are scaled to them.
    """
    total = int(entry.bytes)
    sizes = [total] if entry.tensors is None else [int(size) for size in entry.tensors()]
    if scaled and (whole := sum(sizes)):
        ends = [so_far * total // whole for so_far in accumulate(sizes)]
        sizes = [end - begin for begin, end in zip([0, *ends], ends, strict=False)]
    assert sum(sizes) == total, f"{entry.name}: tensors of {sum(sizes):,} B, entry of {total:,} B"
    return sizes


def head_gradient(entries: Sequence[Entry]) -> int | None:
    """The index of the entry of the head's gradient that waits for the embedding's, if any."""
    found = (index for index, entry in enumerate(entries) if entry.role == HEAD_GRADIENT)
    return next(found, None)
