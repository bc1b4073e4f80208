"""The longest sequence that fits with a run's other settings."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from ..core.calculator import Estimate, busiest_stage, needed_bytes
from ..core.resolved_run import ResolvedRun
from ..core.stage_replay import survives
from .lines import Line, line

STEP = 128  # lengths are multiples of this many tokens
CLOSE = 32  # the ledger's answer is exact to about 1/32
NEAR = 16  # the replay's answer is exact to about 1/16


def longest_sequence(estimate: Estimate) -> int | None:
    """The longest sequence in tokens that fits, to about 6 %; None where none fits.

    The ledger gives an upper bound. Where the replay fails at that length, because of
    fragmentation, shorter lengths are replayed by bisection; the first guess leaves the allocator
    as many bytes above the ledger as in this run. A length may fail where a longer one survives, so
    the next shorter one is tried as well.
    """
    resolved, result = estimate.resolved, estimate.result
    limit = resolved.hardware.memory_bytes
    high = _longest_by_ledger(resolved, limit)
    if high is None or estimate.replayed is None or _survives(resolved, high):
        return high
    low = int(resolved.run.seq) // STEP * STEP if result.fits_on_gpu else 0
    if low == 0 or low >= high:
        if not _survives(resolved, STEP):
            return None
        low = STEP
    overhead = limit - result.headroom_bytes - needed_bytes(resolved, resolved.run)
    guesses = [_longest_by_ledger(resolved, limit - overhead) or low]
    while high - low > max(STEP, low // NEAR):
        middle = guesses.pop() if guesses else (low + high) // 2
        middle = min(max(middle // STEP * STEP, low + STEP), high - STEP)
        lengths = [length for length in (middle, middle - STEP) if length > low]
        surviving = next((length for length in lengths if _survives(resolved, length)), None)
        low, high = (low, middle) if surviving is None else (surviving, high)
    return low


def _survives(resolved: ResolvedRun, seq: int) -> bool:
    """Whether the replay survives with a sequence of `seq` tokens."""
    longer = replace(resolved, run=replace(resolved.run, seq=seq))
    outside = sum(size for _, size, _ in longer.outside_torch)
    return survives(longer, busiest_stage(longer), resolved.hardware.memory_bytes - outside)


def _longest_by_ledger(resolved: ResolvedRun, limit: int) -> int | None:
    """The longest sequence by the ledger alone. Memory is nearly linear in the sequence, so guesses
    are interpolated.
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


def longest_sequence_words(estimate: Estimate) -> str:
    """A sentence part on how long the sequence can be; empty where it cannot be longer, or where a
    record fixes it.
    """
    run = estimate.resolved.run
    if run.record is not None:  # a record fixes the batch
        return ""
    seq, serves = int(run.seq), run.new_tokens is not None
    what, batch = ("prompt", "batch") if serves else ("sequence", "micro-batch")
    longest = longest_sequence(estimate)
    if estimate.result.fits_on_gpu:
        longer = longest is not None and longest > seq
        return f"fits up to a {what} of about {longest:,} at this {batch}" if longer else ""
    if longest is None:
        return f"no {what} length fits"
    return f"a {what} of about {longest:,} would fit"


def length_lines(estimate: Estimate) -> Iterator[Line]:
    """`longest_sequence_words` as a line of the report."""
    words = longest_sequence_words(estimate)
    if words:
        yield line(f"room: {words}")
