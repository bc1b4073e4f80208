"""How far a run's sequence can grow, or must shrink."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from ..core.calculator import Estimate, busiest_stage, needed_bytes
from ..core.replayed import survives
from ..core.resolve import Resolved
from .lines import Line, line

STEP = 128  # sequences are tried in steps of so many tokens
CLOSE = 32  # to about one part in so many
TRIES = 4


def longest_sequence(estimate: Estimate) -> int | None:
    """The longest sequence that still fits, to about 3 %; nothing where none does.

    The ledger finds it. Where the allocator does not survive it, for want of a block that is large
    enough, shorter ones are tried.
    """
    resolved = estimate.resolved
    outside = sum(size for _, size, _ in resolved.outside_torch)
    limit = resolved.hardware.memory_bytes
    for _ in range(TRIES):
        found = _by_ledger(resolved, limit)
        if found is None or estimate.replayed is None:
            return found
        longer = replace(resolved, run=replace(resolved.run, seq=found))
        cap = resolved.hardware.memory_bytes - outside
        if survives(longer, busiest_stage(longer), cap):
            return found
        limit -= limit // CLOSE
    return None


def _by_ledger(resolved: Resolved, limit: int) -> int | None:
    """The longest sequence by the ledger alone. Memory is nearly linear in the sequence, so the
    next guess lies on a line.
    """
    most = (resolved.longest_seq or 2**24) // STEP

    def needs(steps: int) -> int:
        return needed_bytes(resolved, replace(resolved.run, seq=steps * STEP))

    low, high = 0, max(1, int(resolved.run.seq) // STEP)
    below, above = 0, needs(high)
    while above <= limit and high < most:
        low, below, high = high, above, min(high * 2, most)
        above = needs(high)
    if above <= limit:
        return high * STEP
    while high - low > max(1, low // CLOSE):
        guess = low + (high - low) * (limit - below) // (above - below)
        middle = min(max(guess, low + 1), high - 1)
        height = needs(middle)
        if height > limit:
            high, above = middle, height
        elif needs(middle + max(1, middle // CLOSE)) > limit:
            return middle * STEP
        else:
            low, below = middle, height
    return low * STEP or None


def room_lines(estimate: Estimate) -> Iterator[Line]:
    """How far the sequence can grow, or must shrink."""
    run = estimate.resolved.run
    seq, serves = int(run.seq), run.new_tokens is not None
    what, batch = ("prompt", "batch") if serves else ("sequence", "micro-batch")
    longest = longest_sequence(estimate)
    if estimate.result.fits_on_gpu:
        if longest is not None and longest > seq:
            yield line(f"room: fits up to a {what} of about {longest:,} at this {batch}")
    elif longest is None:
        yield line(f"room: no {what} length fits" if serves else "room: no sequence length fits")
    else:
        yield line(f"room: a {what} of about {longest:,} would fit")
