"""The longest sequence that fits with a run's other settings."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from msgspec.structs import replace

from ..runfile.resolve.resolved_run import ResolvedRun
from .calculator import STEP as STEPS
from .calculator import Estimate, stage_ledgers
from .stage_replay import most_bytes, taken_under

STEP = 128  # lengths are multiples of this many tokens
CLOSE = 32  # the ledger's answer is exact to about 1/32
NEAR = 16  # the replay's answer is exact to about 1/16
PREDICTED = 4  # so many lengths are tried where a prediction ends


def longest_sequence(estimate: Estimate) -> int | None:
    """The longest sequence in tokens that fits, to about 6 %; None where none fits.

    The ledger gives an upper bound. The first guess leaves the allocator and the margin the share
    that they have in this run; from there lengths are tried, in growing steps and by bisection.
    """
    resolved, result = estimate.resolved, estimate.result
    limit = min(resolved.hardware.memory_bytes, most_bytes(resolved.allocator))

    @cache
    def peaks(seq: int) -> list[int]:
        return stage_ledgers(_with_seq(resolved, seq)).peaks(STEPS)

    def needs(seq: int) -> int:
        return max(peaks(seq)) + result.outside_torch_bytes

    if needs(STEP) > limit:
        return None
    if result.needs_bytes is None:
        return _longest_by_ledger(resolved, needs, limit)
    margin = result.margin_bytes or 0
    total = result.needs_bytes + margin + result.outside_torch_bytes
    cap = limit - margin * limit // total
    guess = _longest_by_ledger(resolved, needs, needs(int(resolved.run.seq)) * limit // total)
    least = int(resolved.run.seq) // STEP * STEP if result.figures_fit else 0
    start = max(guess or STEP, least + STEP)

    @cache
    def taken(seq: int) -> int:
        if needs(seq) > cap:
            return needs(seq)
        busiest = peaks(seq).index(max(peaks(seq)))
        return _taken(_with_seq(resolved, seq), busiest, cap)

    if _is_below_most(resolved, needs, limit, least, start) and taken(start) > cap:
        dies = start + 2 * STEP  # any length beyond: `start` is tried first, and dies
    else:
        most = _longest_by_ledger(resolved, needs, limit)
        assert most is not None, "the shortest fits by the ledger"
        start, dies = min(start, most), most + STEP
    lengths = TriedLengths(least, dies, start)
    while (length := lengths.next()) is not None:
        lengths.add(length, taken(length), cap, needs(STEP))
    return lengths.survives or None


def _is_below_most(
    resolved: ResolvedRun, needs: Callable[[int], int], limit: int, least: int, start: int
) -> bool:
    """Whether the longest sequence by the ledger is longer than `start`, and not so close to
    `least` that none between them is tried: known without a search for it.
    """
    beyond = start + max(1, start // STEP // CLOSE) * STEP
    known = beyond <= (resolved.longest_seq or beyond) // STEP * STEP and needs(beyond) <= limit
    return known and start + 2 * STEP - least > max(STEP, least // NEAR)


class TriedLengths:
    """Lengths that were tried: `survives` is the longest that does, unless it is 0, and `dies` the
    shortest that does not; both are known at first. About at `turn` lengths begin to die.

    Which lengths a search tries depends only on which of those before them survive. So the search
    is made with those that `turn` predicts, and where it ends is tried; after a few tries, it is
    made without predictions.
    """

    __slots__ = ("dies", "ends", "start", "survives", "tries", "turn")

    def __init__(self, survives: int, dies: int, start: int) -> None:
        self.survives, self.dies, self.ends = survives, dies, (survives, dies)
        self.start = self.turn = start
        self.tries = 0

    def next(self) -> int | None:
        """The next length to try; None where one that survives and one that dies are close."""
        low, high = self.ends
        length, step = self.start, 0
        while high - low > max(STEP, low // NEAR):
            if self._is_open(length) and self.tries >= PREDICTED:
                return length
            if length <= self.survives or (length < self.dies and length <= self.turn):
                low = length
            else:
                high = length
            step = max(2 * step, length // NEAR // STEP * STEP, STEP)
            near = low + step if low == length else high - step
            length = near if low < near < high else (low + high) // 2 // STEP * STEP
        return next(filter(self._is_open, (low, high)), None)

    def _is_open(self, length: int) -> bool:
        return self.survives < length < self.dies

    def add(self, length: int, taken: int, cap: int, fixed: int) -> None:
        """Add a length with what it takes, at most `cap` where it survives. `fixed`: bytes that do
        not depend on the length.

        What a replay takes that raises its cap is often too much, so `turn` is half-way there.
        """
        self.tries += 1
        if taken <= cap:
            self.survives = length
        else:
            self.dies = length
            grows = max(1, taken - fixed)  # 0 where the length does not matter
            self.turn = (length + length * (cap - fixed) // grows) // 2
        if not self._is_open(self.turn):
            found = self.dies < self.ends[1]
            self.turn = (self.survives + self.dies) // 2 if found else self.survives


def _with_seq(resolved: ResolvedRun, seq: int) -> ResolvedRun:
    return replace(resolved, run=replace(resolved.run, seq=seq))


def _taken(resolved: ResolvedRun, stage: int, limit: int) -> int:
    """What a replay of a stage takes on a card of `limit` bytes."""
    outside = sum(size for _, size, _ in resolved.outside_torch)
    return taken_under(resolved, stage, limit - outside) + outside


def _longest_by_ledger(
    resolved: ResolvedRun, needs: Callable[[int], int], limit: int
) -> int | None:
    """The longest sequence that `needs` at most `limit` bytes by the ledger. Memory is nearly
    linear in the sequence, so guesses are interpolated.
    """
    most = (resolved.longest_seq or 2**24) // STEP
    low, high = 0, max(1, int(resolved.run.seq) // STEP)
    below, above = 0, needs(high * STEP)
    while above <= limit and high < most:
        low, below, high = high, above, min(high * 2, most)
        above = needs(high * STEP)
    if above <= limit:
        return high * STEP
    while high - low > max(1, low // CLOSE):
        guess = low + (high - low) * (limit - below) // (above - below)
        middle = min(max(guess, low + 1), high - 1)
        height = needs(middle * STEP)
        if height > limit:
            high, above = middle, height
        elif needs((middle + max(1, middle // CLOSE)) * STEP) > limit:
            return middle * STEP
        else:
            low, below = middle, height
    return low * STEP or None
