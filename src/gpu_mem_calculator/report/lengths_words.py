"""Batches that differ in length, in words."""

from __future__ import annotations

from collections.abc import Iterator

from ..estimates.lengths_result import EXPANDABLE
from ..estimates.result import LengthsResult, MemoryResult
from ..ledger.units import gib
from ..training.lengths.samplers import GROUPED

SETTINGS = {EXPANDABLE: "expandable_segments", GROUPED: "batches grouped by length"}


def lengths_words(result: MemoryResult) -> Iterator[str]:
    """Which batch is longest, what torch reserves after the steps, and what changes that."""
    found = result.lengths
    if found is None:
        return
    longest, kept = found.longest_batch, gib(found.reserved_after_bytes)
    batch = f"{longest.sequences:,} × {longest.tokens:,} tokens, step {longest.step:,}"
    after = f"torch reserves {kept} GiB after {found.steps:,} steps"
    yield f"longest batch: {batch}; {after}{_orders(found)}"
    if found.instead:
        others = (
            f"{gib(one.reserved_after_bytes)} with {SETTINGS[one.setting]}" for one in found.instead
        )
        yield f"it would reserve {', '.join(others)}"


def _orders(found: LengthsResult) -> str:
    """The spread over orders, and in how many of them the run dies."""
    if found.known:
        return ""
    low, high = gib(found.spread.low_bytes), gib(found.spread.high_bytes)
    dying = round(found.probability_to_die * found.orders)
    dies = f", and the run dies in {dying} of them" if dying else ""
    return f" ({low} to {high} in {found.orders} drawn orders{dies})"


def long_lengths_words(result: MemoryResult) -> Iterator[str]:
    """The same with what was drawn."""
    yield from lengths_words(result)
    found = result.lengths
    if found is None:
        return
    epoch = f", {found.epoch_steps:,} of an epoch" if found.epoch_steps else ""
    how = "in the run's own order" if found.known else f"in {found.orders} orders"
    yield f"replayed {how}: {found.steps:,} of {found.run_steps:,} steps{epoch}"
    highest = sorted(result.steps, key=lambda one: -one.peak_bytes)[:3]
    peaks = ", ".join(f"step {one.step:,} {gib(one.peak_bytes, 2)}" for one in highest)
    yield f"highest steps: {peaks} GiB allocated"
