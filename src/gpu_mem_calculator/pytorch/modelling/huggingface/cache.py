"""The KV cache of one layer (transformers 5.17.0).

cache_utils.py, DynamicLayer.update: `self.keys = torch.cat([self.keys, key_states])`, then the
values. The old keys are freed when the new ones take their name; the added keys and values stay
until both are concatenated. A layer with a sliding window keeps a view of its last tokens, whose
storage is that of the whole concatenation (DynamicSlidingWindowLayer). A static cache is allocated
as zeros by the first pass and overwritten by all (StaticLayer).
"""

from __future__ import annotations

from collections.abc import Iterable

from ....ledger.num import EMPTY, Num, sized
from ...autograd.tape import Tape, Value
from .setting import BlockSetting

NAMES = ("keys", "values")


class LayerCache:
    """One layer's cache: `old`, its tensors before a forward pass, and `kept`, those after it."""

    def __init__(self, tape: Tape, *old: tuple[str, Num, int], slides: bool = False) -> None:
        """`old`: name, allocated elements and bits of each tensor before the pass.

        `slides`: with a sliding window, old keys and values are freed together, after both new
        ones are allocated.
        """
        self.slides = slides
        self.kept: list[Value] = []
        self.old = [
            tape.value(f"{name}.old", elements, bits, grad=False) for name, elements, bits in old
        ]

    def update(self, tape: Tape, setting: BlockSetting, key: Value, value: Value) -> list[Value]:
        """Append the new tokens' keys and values; returns what attention reads.

        Both have the keys' dtype: values begin as an empty tensor of it. Autocast casts narrower
        ones before torch.cat.
        """
        bits = max(key.bits, value.bits)
        new = [
            tape.op(
                f"cache.{name}",
                x,
                *old,
                elements=x.elements() // setting.seq * setting.keys,
                bits=bits,
                temp=EMPTY if x.bits == bits else sized(x.elements(), bits),
            )
            for name, x, old in zip(NAMES, (key, value), self._parts(), strict=True)
        ]
        tape.hold(key, value, *(self.old if self.slides else ()))
        self.kept += new
        return new

    def length(self, setting: BlockSetting) -> Num:
        """Tokens per sequence that `update` returns."""
        return setting.keys

    def _parts(self) -> tuple[list[Value], list[Value]]:
        return self.old[:1], self.old[1:2]

    def states(self, tape: Tape, source: Value, parts: Iterable[tuple[str, Num, int]]) -> None:
        """Add states of fixed size, allocated in the first pass and overwritten in the others."""
        self.kept += self.old or [
            tape.op(name, source, elements=elements, bits=bits) for name, elements, bits in parts
        ]


class UnusedCache(LayerCache):
    """The cache that a forward pass of training makes where `use_cache` is on: keys and values are
    copied, attention reads the copies, and the model's output names them until the loss exists.
    """

    def update(self, tape: Tape, setting: BlockSetting, key: Value, value: Value) -> list[Value]:
        """The copies. A copy's gradient is that of what was copied, as a view; values that are
        narrower than the keys are cast first.
        """
        bits = max(key.bits, value.bits)
        named = zip(NAMES, (tape.cast(x, bits) for x in (key, value)), strict=True)
        copies = [tape.op(f"cache.{name}", x, passes=True) for name, x in named]
        tape.hold(key, value)
        tape.until_end += copies
        return copies


class StaticLayerCache(LayerCache):
    """A cache allocated for `room` tokens per sequence.

    `over`: the prompt is longer than the window: its last keys and values are copied into the
    cache, and attention reads those of the whole prompt. `rolls`: the window is full, and its
    oldest token is dropped, through copies of keys and values.
    """

    def __init__(
        self, tape: Tape, *old: tuple[str, Num, int], room: Num, over: bool, rolls: bool
    ) -> None:
        super().__init__(tape, *old)
        self.room, self.over, self.rolls = room, over, rolls

    def update(self, tape: Tape, setting: BlockSetting, key: Value, value: Value) -> list[Value]:
        """Write the new tokens into the cache; returns all of it, or the prompt's own keys and
        values where `over`.
        """
        self.kept += self.old or [
            tape.op(
                f"cache.{name}", x, elements=x.elements() // setting.seq * self.room, bits=key.bits
            )
            for name, x in zip(NAMES, (key, value), strict=True)
        ]
        if self.rolls:
            work = tuple(part.bytes for part in self.kept)
            tape.op("cache.rolled", key, elements=0, temp=work)
        tape.hold(key, value, *self.kept)
        return [key, value] if self.over else list(self.kept)

    def length(self, setting: BlockSetting) -> Num:
        """Tokens per sequence that `update` returns."""
        return setting.seq if self.over else self.room
