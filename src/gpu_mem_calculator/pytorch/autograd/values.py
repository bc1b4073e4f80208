"""The tensors of a tape."""

from __future__ import annotations

from msgspec import Struct

from ...ledger.num import Bytes, Num


class Value(Struct, eq=False, gc=False):
    """One tensor on the tape.

    - bytes: its size; bits: of one element
    - grad: it takes a gradient
    - index: its number on the tape; base: that of the value whose storage it uses, for a view
    - param: a weight, which lives outside the block and whose gradient outlives it
    - weight: a weight, or a cast of one
    - waits: another block reads this weight, too, and its gradient waits for that block's
    - cached: autocast keeps this cast of a weight until forward ends
    """

    name: str
    bytes: Bytes
    bits: int
    grad: bool
    index: int
    base: int
    param: bool = False
    weight: bool = False
    waits: bool = False
    cached: bool = False

    def elements(self) -> Num:
        """Number of elements."""
        return self.bytes * 8 // self.bits
