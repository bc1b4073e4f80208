"""One run estimated and traced: what differs, in percent of the traced peak."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from gpu_mem_calculator.estimates.calculator import full_estimate
from gpu_mem_calculator.lab.trace.run import trace
from gpu_mem_calculator.pytorch.replay.stream import AllocationStream
from gpu_mem_calculator.runfile.resolve.resolved_run import ResolvedRun
from gpu_mem_calculator.training.step.stream import allocation_stream

from .runs import RunDict, run_file

STEP = "s1."  # the steps of a run are alike from the second on
STARTUP = ("model", "startup")  # what comes before the steps, in a trace and in an estimate
Peaks = dict[str, int]


class Compared(Struct, frozen=True, kw_only=True):
    """One run. `asked` is what the tensors ask for, whatever the allocator makes of it."""

    index: int
    family: str
    engine: str
    asked_bytes: int  # traced
    asked_estimate_bytes: int
    allocated_bytes: int
    allocated_estimate_bytes: int
    phases: dict[str, tuple[int, int]]  # asked in the second step: traced, estimated

    @property
    def asked_pct(self) -> float:
        """How far the estimate's tensors are from the trace's, before the allocator."""
        return percent(self.asked_estimate_bytes, self.asked_bytes)

    @property
    def allocated_pct(self) -> float:
        """The same for the allocated peak, with the allocator's blocks."""
        return percent(self.allocated_estimate_bytes, self.allocated_bytes)

    @property
    def worst_phase(self) -> tuple[str, float]:
        """The phase of a step that is furthest off, in percent of its own peak."""
        found = {name: percent(ours, theirs) for name, (theirs, ours) in self.phases.items()}
        return max(found.items(), key=lambda one: abs(one[1]), default=("", 0.0))


def percent(ours: int, theirs: int) -> float:
    """How far an estimate is off."""
    return 100 * (ours - theirs) / theirs


def asked_peaks(asked: AllocationStream) -> Peaks:
    """The most bytes of tensors alive in each phase of the steps, as asked for."""
    peaks: Peaks = {}
    alive = start = 0
    for end, name in asked.marks:
        most = alive
        for event in asked.events[start:end]:
            alive += asked.sizes[event] if event >= 0 else -asked.sizes[~event]
            most = max(most, alive)
        peaks[name], start = most, end
    return {name: peak for name, peak in peaks.items() if name not in STARTUP}


def estimated_peaks(resolved: ResolvedRun) -> Peaks:
    """The same for the stream that the estimate writes."""
    run = replace(resolved.run, unrolled=True)
    return asked_peaks(allocation_stream(resolved.engine.ledger(run), int(run.micro_batches)))


def compare_run(run: RunDict, index: int = 0) -> Compared:
    """Estimate a run and trace it."""
    traced, estimated = trace(run), full_estimate(run)
    theirs, ours = asked_peaks(traced.stream), estimated_peaks(estimated.resolved)
    return Compared(
        index=index,
        family=run["model"]["config"]["model_type"],
        engine=traced.resolved.engine.name,
        asked_bytes=max(theirs.values()),
        asked_estimate_bytes=max(ours.values()),
        allocated_bytes=traced.allocated_bytes,
        allocated_estimate_bytes=estimated.result.allocated_bytes,
        phases={
            name: (theirs[name], ours[name])
            for name in theirs
            if name in ours and name.startswith(STEP)
        },
    )


def compare(seed: int, index: int) -> Compared:
    """Run `index` of a seed."""
    return compare_run(run_file(seed, index), index)
