"""The longest sequence that fits, in words."""

from __future__ import annotations

from collections.abc import Iterator

from ..core.calculator import Estimate
from ..core.longest_sequence import longest_sequence
from .lines import Line, line


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
        yield line(f"longest: {words}")
