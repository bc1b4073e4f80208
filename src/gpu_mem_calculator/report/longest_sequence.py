"""The longest sequence that fits, and where a run dies, in words."""

from __future__ import annotations

from collections.abc import Iterator

from ..estimates.bounds import state_bytes
from ..estimates.calculator import Estimate
from ..estimates.result import MemoryResult
from ..ledger.units import gib
from ..run.phases import BACKWARD, EVALUATION, FORWARD, GENERATING, GENERATION, OPTIMIZER, SAVING

PHASES = {
    GENERATION: "generation",
    FORWARD: "forward pass",
    BACKWARD: "backward pass",
    OPTIMIZER: "optimizer step",
    EVALUATION: "evaluation",
    GENERATING: "generation between steps",
    SAVING: "saving of the model",
}


def longest_sequence_words(estimate: Estimate, longest: int | None) -> str:
    """A sentence on how long the sequence can be; empty where a record, a generation or an
    evaluation fixes it.
    """
    run = estimate.resolved.run
    fixed = (run.record, run.rollout, run.evaluation)
    if any(one is not None for one in fixed):
        return ""
    what = "prompt" if estimate.serves else "sequence"
    if longest is None:
        alone = "the weights" if estimate.serves else "model states"
        large = state_bytes(estimate.result) > estimate.result.gpu_memory_bytes
        batch = " at this batch" if estimate.resolved.run.batch > 1 else ""
        why = f": {alone} alone are too large" if large else batch
        return f"even the shortest {what} does not fit{why}"
    batch = "batch" if estimate.serves else "micro-batch"
    return f"longest {what} that fits: about {longest:,} tokens at this {batch}"


def failure_words(result: MemoryResult) -> Iterator[str]:
    """Where a run that does not fit dies, where that is known."""
    found = result.fails_at
    if result.spills_bytes:
        size = gib(result.spills_bytes)
        yield f"it runs, and is slower: the driver keeps {size} GiB in the computer's memory (RAM)."
        least = gib(2 * result.spills_bytes)
        yield f"Windows lends the GPU half of the RAM, so {least} GiB of RAM are enough for that"
    if found is None:
        return
    phase = f"the {PHASES.get(found.phase, found.phase)}"
    if found.step == 0:
        yield "out of memory at start-up, before the first step"
    elif found.step == 1:
        yield f"out of memory in step 1, in {phase}"
    else:
        why = "now with optimizer states" if found.step == 2 else "memory is fragmented"
        yield f"step {found.step - 1} survives, step {found.step} dies in {phase}: {why}"
