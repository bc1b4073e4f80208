"""The peak of a walk, in parts."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from ...ledger.num import EMPTY, Bytes, choose


class PeakParts(Struct, frozen=True, gc=False):
    """Bytes at the peak of a walk: activations, parameter gradients, workspace."""

    act: Bytes = EMPTY
    grad: Bytes = EMPTY
    temp: Bytes = EMPTY

    @property
    def total(self) -> Bytes:
        """The sum of the parts, in bytes."""
        return self.act + self.grad + self.temp

    def or_higher(self, act: Bytes, grad: Bytes, temp: Bytes) -> PeakParts:
        """This peak, or the other one where that is higher."""
        tracker = PeakTracker(self.act, self.grad, self.temp)
        tracker.see(act, grad, temp)
        return tracker.moment


class PeakTracker:
    """The highest of the instants it has seen; of arrays, element by element."""

    __slots__ = ("parts", "total")

    def __init__(self, act: Bytes = EMPTY, grad: Bytes = EMPTY, temp: Bytes = EMPTY) -> None:
        self.parts: tuple[Bytes, Bytes, Bytes] = (act, grad, temp)
        self.total = act + grad + temp

    def see(self, act: Bytes, grad: Bytes, temp: Bytes) -> None:
        """Take an instant as the peak where it is higher."""
        total = act + grad + temp
        higher: Any = total > self.total
        if higher is True or (higher is not False and higher.all()):
            self.total, self.parts = total, (act, grad, temp)
        elif higher is not False and higher.any():
            pairs = zip((act, grad, temp), self.parts, strict=True)
            act, grad, temp = (choose(higher, new, old) for new, old in pairs)
            self.parts = (act, grad, temp)
            self.total = choose(higher, total, self.total)

    @property
    def moment(self) -> PeakParts:
        """The peak so far."""
        return PeakParts(*self.parts)
