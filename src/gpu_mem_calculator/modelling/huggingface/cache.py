"""The cache of keys and values that one layer reads and adds to (transformers 5.17.0).

cache_utils.py, DynamicLayer.update: `self.keys = torch.cat([self.keys, key_states])`, then the
values. The old keys go when the new ones have their name, and what is added stays until both are
done. A layer with a sliding window keeps a view of its last tokens: the memory behind it is that
of everything that was joined (DynamicSlidingWindowLayer). A static cache is made of zeros by the
first pass and written over by all (StaticLayer).
"""

from __future__ import annotations

from collections.abc import Iterable

from ...autograd.tape import Tape, Value
from ...ledger.num import Num
from .setting import BlockSetting

NAMES = ("keys", "values")


class LayerCache:
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

    def update(self, tape: Tape, setting: BlockSetting, key: Value, value: Value) -> list[Value]:
        """Keys and values with the new tokens' behind them."""
        new = [
            tape.op(f"cache.{name}", x, *old, elements=x.elements() // setting.seq * setting.keys)
            for name, x, old in zip(NAMES, (key, value), self._parts(), strict=True)
        ]
        tape.hold(key, value, *(self.old if self.slides else ()))
        self.kept += new
        return new

    def length(self, setting: BlockSetting) -> Num:
        """Tokens a sequence of what `update` gives back."""
        return setting.keys

    def _parts(self) -> tuple[list[Value], list[Value]]:
        return self.old[:1], self.old[1:2]

    def states(self, tape: Tape, source: Value, parts: Iterable[tuple[str, Num, int]]) -> None:
        """States of fixed size, made in the first pass and written over in the others."""
        self.kept += self.old or [
            tape.op(name, source, elements=elements, bits=bits) for name, elements, bits in parts
        ]


class StaticLayerCache(LayerCache):
    """A cache with room for so many tokens a sequence.

    `over`: a prompt is longer than a window, whose keys and values are copied in; attention reads
    the prompt's own. `rolls`: a full window's oldest token makes way, in copies of both.
    """

    def __init__(
        self, tape: Tape, *old: tuple[str, Num, int], room: Num, over: bool, rolls: bool
    ) -> None:
        super().__init__(tape, *old)
        self.room, self.over, self.rolls = room, over, rolls

    def update(self, tape: Tape, setting: BlockSetting, key: Value, value: Value) -> list[Value]:
        """All there is room for, or a prompt's own keys and values."""
        self.kept += self.old or [
            tape.op(f"cache.{name}", x, elements=x.elements() // setting.seq * self.room)
            for name, x in zip(NAMES, (key, value), strict=True)
        ]
        if self.rolls:
            work = tuple(part.bytes for part in self.kept)
            tape.op("cache.rolled", key, elements=0, temp=work)
        tape.hold(key, value, *self.kept)
        return [key, value] if self.over else list(self.kept)

    def length(self, setting: BlockSetting) -> Num:
        """Whatever has been seen."""
        return setting.seq if self.over else self.room
