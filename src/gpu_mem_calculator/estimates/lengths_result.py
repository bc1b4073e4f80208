"""What a result says of batches that differ in length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from ..runfile.resolve.resolved_run import ResolvedRun
from ..training.lengths.batches import redrawn
from ..training.lengths.samplers import GROUPED, SEQUENTIAL
from .drawn import reserved_bytes
from .figures import Figures
from .result import LengthsResult, LongestBatch, OtherReserve, ReserveSpread
from .stage_ledgers import ledger_of
from .stage_requests import shape_streams

EXPANDABLE = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"


def lengths_result(figures: Figures) -> LengthsResult | None:
    """The batches of a run that was replayed; None where all are alike."""
    drawn, shown = figures.resolved.lengths, figures.replayed
    if drawn is None or shown is None:
        return None
    longest = drawn.longest
    reserved = figures.drawn.reserved if figures.drawn else (shown.reserved_bytes,)
    dying = figures.drawn.dying if figures.drawn else not shown.survives(figures.cap)
    return LengthsResult(
        longest_batch=LongestBatch(
            sequences=longest.sequences, tokens=longest.tokens, step=drawn.longest_step
        ),
        tokens=longest.total,
        steps=len(drawn.main),
        run_steps=drawn.steps,
        epoch_steps=drawn.epoch,
        orders=len(reserved),
        known=drawn.known,
        reserved_after_bytes=shown.reserved_bytes,
        spread=_spread(reserved),
        probability_to_die=dying / len(reserved),
        instead=list(_instead(figures.resolved)),
    )


def can_expand(resolved: ResolvedRun) -> bool:
    """Whether expandable segments are a change: they are not on, and torch has them there."""
    spilling = resolved.hardware.spilling
    there = spilling is None or spilling.of_wsl
    return there and not resolved.allocator.expandable_segments


def _spread(reserved: Sequence[int]) -> ReserveSpread:
    ranked = sorted(reserved)
    return ReserveSpread(
        low_bytes=ranked[0], median_bytes=ranked[len(ranked) // 2], high_bytes=ranked[-1]
    )


def _instead(resolved: ResolvedRun) -> Iterator[OtherReserve]:
    """What the shown order would reserve with other settings."""
    drawn = resolved.lengths
    assert drawn is not None
    streams = shape_streams(ledger_of(resolved), resolved.run, 0)
    if can_expand(resolved):
        settings = replace(resolved.allocator, expandable_segments=True)
        size = reserved_bytes(drawn.main, streams, settings)
        yield OtherReserve(setting=EXPANDABLE, reserved_after_bytes=size)
    together = drawn.batching.rows * drawn.batching.micro_batches
    if drawn.batching.strategy not in (GROUPED, SEQUENTIAL) and together > 1:
        grouped = redrawn(drawn, GROUPED)
        size = reserved_bytes(grouped, streams, resolved.allocator)
        yield OtherReserve(setting=GROUPED, reserved_after_bytes=size)
