"""The longest sequence that fits with a run's other settings."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from msgspec.structs import replace

from ..runfile.resolve.resolved_run import ResolvedRun
from .calculator import Estimate, busiest_stage, needed_bytes
from .stage_replay import survives

STEP = 128  # lengths are multiples of this many tokens
CLOSE = 32  # the ledger's answer is exact to about 1/32
NEAR = 16  # the replay's answer is exact to about 1/16


def longest_sequence(estimate: Estimate) -> int | None:
    """The longest sequence in tokens that fits, to about 6 %; None where none fits.

    The ledger gives an upper bound. The first guess leaves the allocator and the margin the share
    that they have in this run; from there lengths are replayed, in growing steps and by bisection.
    """
    resolved, result = estimate.resolved, estimate.result
    limit = resolved.hardware.memory_bytes

    @cache
    def needs(seq: int) -> int:
        return needed_bytes(resolved, replace(resolved.run, seq=seq))

    if needs(STEP) > limit:
        return None
    most = _longest_by_ledger(resolved, needs, limit)
    if most is None or result.needs_bytes is None:
        return most
    margin = result.margin_bytes or 0
    total = result.needs_bytes + margin + result.outside_torch_bytes
    cap = limit - margin * limit // total
    guess = _longest_by_ledger(resolved, needs, needs(int(resolved.run.seq)) * limit // total)
    least = int(resolved.run.seq) // STEP * STEP if result.figures_fit else 0
    low, high = least, most + STEP  # `low` fits, unless it is 0; `high` does not
    length, step = min(max(guess or STEP, low + STEP), most), 0
    while high - low > max(STEP, low // NEAR):
        if needs(length) <= cap and _survives(resolved, length, cap):
            low = length
        else:
            high = length
        step = max(2 * step, length // NEAR // STEP * STEP, STEP)
        near = low + step if low == length else high - step
        length = near if low < near < high else (low + high) // 2 // STEP * STEP
    return low or None


def _survives(resolved: ResolvedRun, seq: int, limit: int) -> bool:
    """Whether the replay survives with a sequence of `seq` tokens on a card of `limit` bytes."""
    longer = replace(resolved, run=replace(resolved.run, seq=seq))
    outside = sum(size for _, size, _ in longer.outside_torch)
    return survives(longer, busiest_stage(longer), limit - outside)


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
