"""The cache of keys and values that one layer reads and makes anew (transformers 5.17.0).

cache_utils.py, DynamicLayer.update: `self.keys = torch.cat([self.keys, key_states])`, then the
values. The old keys go when the new ones have their name, and what is added stays until both are
done. A layer with a sliding window keeps a view of its last tokens: the memory behind it is that
of everything that was joined (DynamicSlidingWindowLayer).
"""

from __future__ import annotations

from collections.abc import Iterable

from ...ledger.num import Num
from ..tape import Tape, Value
from .setting import Setting


class Cache:
    """One layer's cache: what is there before, and what is kept of a forward pass."""

    def __init__(self, tape: Tape, *old: tuple[str, Num, int], slides: bool = False) -> None:
        """`old` has a name, the elements that hold memory, and the bits of each part.

        Where it slides, the old keys and values go together, when both new ones are made.
        """
        self.slides = slides
        self.kept: list[Value] = []
        self.old = [
            tape.value(f"{name}.old", elements, bits, grad=False) for name, elements, bits in old
        ]

    def update(self, tape: Tape, setting: Setting, key: Value, value: Value) -> list[Value]:
        """Keys and values with the new tokens' behind them."""
        new = [
            tape.op(f"cache.{name}", x, *old, elements=x.elements() // setting.seq * setting.keys)
            for name, x, old in zip(("keys", "values"), (key, value), self._parts(), strict=True)
        ]
        tape.hold(key, value, *(self.old if self.slides else ()))
        self.kept += new
        return new

    def _parts(self) -> tuple[list[Value], list[Value]]:
        return self.old[:1], self.old[1:2]

    def states(self, tape: Tape, source: Value, parts: Iterable[tuple[str, Num, int]]) -> None:
        """States of fixed size, made in the first pass and written over in the others."""
        self.kept += self.old or [
            tape.op(name, source, elements=elements, bits=bits) for name, elements, bits in parts
        ]
