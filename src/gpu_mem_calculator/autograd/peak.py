"""The peak of a walk, in parts."""

from __future__ import annotations

from msgspec import Struct

from ..ledger.num import Num, choose


class PeakParts(Struct, frozen=True, gc=False):
    """Bytes at the peak of a walk: activations, parameter gradients, workspace."""

    act: Num = 0
    grad: Num = 0
    temp: Num = 0

    @property
    def total(self) -> Num:
        """The sum of the parts, in bytes."""
        return self.act + self.grad + self.temp

    def or_higher(self, act: Num, grad: Num, temp: Num) -> PeakParts:
        """This peak, or the other one where that is higher."""
        tracker = PeakTracker(self.act, self.grad, self.temp)
        tracker.see(act, grad, temp)
        return tracker.moment


class PeakTracker:
    """The highest of the instants it has seen; of arrays, element by element."""

    __slots__ = ("parts", "total")

    def __init__(self, act: Num = 0, grad: Num = 0, temp: Num = 0) -> None:
        self.parts: tuple[Num, Num, Num] = (act, grad, temp)
        self.total = act + grad + temp

    def see(self, act: Num, grad: Num, temp: Num) -> None:
        """Take an instant as the peak where it is higher."""
        total = act + grad + temp
        higher = total > self.total
        if higher is True:
            self.total, self.parts = total, (act, grad, temp)
        elif higher is not False:
            acts, grads, temps = self.parts
            self.parts = (
                choose(higher, act, acts),
                choose(higher, grad, grads),
                choose(higher, temp, temps),
            )
            self.total = choose(higher, total, self.total)

    @property
    def moment(self) -> PeakParts:
        """The peak so far."""
        return PeakParts(*self.parts)
