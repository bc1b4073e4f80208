"""The highest moment of a walk, in parts."""

from __future__ import annotations

from msgspec import Struct

from ..ledger.num import Num, choose


class PeakParts(Struct, frozen=True, gc=False):
    """The highest moment of a walk, in parts: activations, parameter gradients, workspace."""

    act: Num = 0
    grad: Num = 0
    temp: Num = 0

    @property
    def total(self) -> Num:
        """All of it."""
        return self.act + self.grad + self.temp

    def or_higher(self, act: Num, grad: Num, temp: Num) -> PeakParts:
        """This moment, or another one where that is higher."""
        high = PeakTracker(self.act, self.grad, self.temp)
        high.see(act, grad, temp)
        return high.moment


class PeakTracker:
    """Keeps the highest of the moments it sees."""

    __slots__ = ("parts", "total")

    def __init__(self, act: Num = 0, grad: Num = 0, temp: Num = 0) -> None:
        self.parts: tuple[Num, Num, Num] = (act, grad, temp)
        self.total = act + grad + temp

    def see(self, act: Num, grad: Num, temp: Num) -> None:
        """Look at a moment."""
        total = act + grad + temp
        higher = total > self.total
        if higher is True:
            self.total, self.parts = total, (act, grad, temp)
        elif higher is not False:
            both = zip((act, grad, temp), self.parts, strict=True)
            self.parts = tuple(choose(higher, new, old) for new, old in both)
            self.total = choose(higher, total, self.total)

    @property
    def moment(self) -> PeakParts:
        """The highest one."""
        return PeakParts(*self.parts)
