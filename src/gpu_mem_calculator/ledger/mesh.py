"""How many ranks share each axis of a job."""

from __future__ import annotations

from msgspec import Struct

from .num import Num

TP, EP = "tp", "ep"


class Mesh(Struct, frozen=True, kw_only=True):
    """Ranks along each axis: ints for one run, arrays for several at once.

    `ep` divides `dp`: experts are sharded over ranks that would otherwise replicate them.
    """

    dp: Num = 1
    tp: Num = 1
    pp: Num = 1
    cp: Num = 1
    ep: Num = 1

    def size(self, axes: tuple[str, ...]) -> Num:
        """The product of the ranks of some axes."""
        ranks: Num = 1
        for axis in axes:
            ranks = ranks * getattr(self, axis)
        return ranks
