"""The longest sequence that fits with a run's other settings, whichever length the run itself has.

Lengths have places: multiples of 128 tokens up to 8,192, then 32 of them to each doubling. The
answer is the last place where the run fits.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from msgspec.structs import replace

from ..runfile.resolve.resolved_run import ResolvedRun
from .calculator import STEP as STEPS
from .calculator import Estimate, resolved_verdict, stage_ledgers
from .fit_verdict import FITS
from .margin import SEGMENTS
from .stage_replay import most_bytes, taken_under

STEP = 128  # lengths are multiples of this many tokens
DOUBLING = 32  # places from a length to its double
FIRST = 4096  # from this length on the ledger is searched
NEAR = 16  # places below the ledger's bound that are tried one by one; then it is bisected
LONGEST = 2**24  # tokens, of a model without positions of its own


def longest_sequence(estimate: Estimate) -> int | None:
    """The longest sequence in tokens that fits; None where the shortest does not.

    The ledger gives an upper bound, from which lengths are tried downwards: what fragments take
    differs from length to length, so that a run may fit with a longer one, and not with a shorter.
    """
    run, result = estimate.resolved.run, estimate.result
    resolved = replace(estimate.resolved, lengths=None)  # those drawn are not the longest
    outside = sum(size for _, size, _ in resolved.outside_torch)
    has = min(resolved.hardware.memory_bytes, most_bytes(resolved.allocator)) - outside
    top = place_of(resolved.longest_seq or LONGEST)

    @cache
    def peaks(place: int) -> list[int]:
        return stage_ledgers(_at_place(resolved, place)).peaks(STEPS)

    def needs(place: int) -> int:
        return max(peaks(place))

    @cache
    def fits(place: int) -> bool:
        if needs(place) > has:
            return False
        busiest, one = peaks(place).index(needs(place)), _at_place(resolved, place)
        return taken_under(one, busiest, has) <= has and resolved_verdict(one) == FITS

    place = last_that_fits(fits, last_by_ledger(needs, has - SEGMENTS, top))
    itself = int(run.seq) if result.figures_fit and place_of(int(run.seq)) > place else 0
    return max(length_at(place), itself) or None


def length_at(place: int) -> int:
    """The length in tokens that has a place."""
    shift = max(0, place // DOUBLING - 1)
    return STEP * (place - DOUBLING * shift << shift)


def place_of(length: int) -> int:
    """The place of the longest length that is at most `length`."""
    units = length // STEP
    shift = max(0, units.bit_length() - DOUBLING.bit_length())
    return (units >> shift) + DOUBLING * shift


def last_that_fits(fits: Callable[[int], bool], last: int) -> int:
    """The last place up to `last` that fits, where it is not far below; 0 where the first does not.

    Far below, it is one that fits while the next does not.
    """
    if not last or not fits(1):
        return 0
    near = max(1, last - NEAR)
    found = next((place for place in range(last, near, -1) if fits(place)), None)
    if found:
        return found
    low, high = 1, near + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def last_by_ledger(needs: Callable[[int], int], limit: int, top: int) -> int:
    """The last place up to `top` that needs at most `limit` bytes by the ledger; 0 where none does.
    Memory is nearly linear in the length, so guesses are interpolated.
    """
    low, high = 0, min(place_of(FIRST), top)
    below, above = 0, needs(high)
    while above <= limit and high < top:
        low, below, high = high, above, min(high + DOUBLING, top)
        above = needs(high)
    if above <= limit:
        return high
    while high - low > 1:
        length = length_at(low) + (length_at(high) - length_at(low)) * (limit - below) // (
            above - below
        )
        place = min(max(place_of(length), low + 1), high - 1)
        size = needs(place)
        if size > limit:
            high, above = place, size
        elif place + 1 == high or needs(place + 1) > limit:
            return place
        else:
            low, below = place, size
    return low


def _at_place(resolved: ResolvedRun, place: int) -> ResolvedRun:
    return replace(resolved, run=replace(resolved.run, seq=length_at(place)))
