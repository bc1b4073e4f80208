"""What tests of the estimate's streams share."""

from __future__ import annotations

from msgspec.structs import replace

from gpu_mem_calculator.ledger.ledger import Ledger
from gpu_mem_calculator.pytorch.replay.stream import AllocationStream
from gpu_mem_calculator.runfile.resolve.resolved_run import ResolvedRun
from gpu_mem_calculator.training.step.stream import allocation_stream


def highest(asked: AllocationStream) -> int:
    """The most bytes alive behind start-up; nothing is freed that is not there."""
    begin = asked.marks[0][0]
    alive: set[int] = set()
    total = peak = 0
    for at, event in enumerate(asked.events):
        if event >= 0:
            assert event not in alive
            alive.add(event)
            total += asked.sizes[event]
        else:
            alive.remove(~event)
            total -= asked.sizes[~event]
        peak = max(peak, total) if at >= begin else 0
    return peak


def rolled_and_written(
    found: ResolvedRun, stage: int = 0, steps: int = 2
) -> tuple[Ledger, AllocationStream]:
    """A stage's ledger, and what its unrolled one asks of the allocator."""
    run = replace(found.run, stage=stage)
    unrolled = found.engine.ledger(replace(run, unrolled=True))
    return found.engine.ledger(run), allocation_stream(unrolled, int(run.micro_batches), steps)
