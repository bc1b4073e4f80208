"""One run estimated and traced: what differs, in percent of the traced peak."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from gpu_mem_calculator.backtest.phases import phase_peaks
from gpu_mem_calculator.core.calculator import full_estimate
from gpu_mem_calculator.replay.stream import Stream
from gpu_mem_calculator.trace.run import trace

from .runs import RunDict, run_file

UNROUNDED = "expandable_segments:True"  # the setting under which no block has an unsplit rest
LATER = "s1."  # the steps of a run are alike from the second on


class Compared(Struct, frozen=True, kw_only=True):
    """One run. `asked`: bytes of tensors alive, whatever the allocator makes of them."""

    index: int
    family: str
    engine: str
    asked_bytes: int  # traced
    asked_estimate_bytes: int
    allocated_bytes: int
    allocated_estimate_bytes: int
    phases: dict[str, tuple[int, int]]  # asked: traced, estimated

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
        return max(found.items(), key=lambda one: abs(one[1]))


def percent(ours: int, theirs: int) -> float:
    """How far an estimate is off."""
    return 100 * (ours - theirs) / theirs


def asked_peaks(stream: Stream) -> dict[str, int]:
    """The most bytes of tensors alive in each phase, as asked for."""
    peaks: dict[str, int] = {}
    alive = start = 0
    for end, name in stream.marks:
        most = alive
        for event in stream.events[start:end]:
            alive += stream.sizes[event] if event >= 0 else -stream.sizes[~event]
            most = max(most, alive)
        peaks[name], start = most, end
    return peaks


def compare_run(run: RunDict, index: int = 0) -> Compared:
    """Estimate a run and trace it."""
    traced = trace(run)
    plain: dict[str, Any] = {**run, "training": {**run["training"]}}
    plain["training"]["pytorch_alloc_conf"] = UNROUNDED
    unrounded = full_estimate(plain)
    asked = asked_peaks(traced.stream)
    steps = tuple(name for name in asked if name != "model")
    accumulated = run["training"].get("gradient_accumulation_steps", 1)
    ours = phase_peaks(unrounded.ledger, steps, accumulated)
    return Compared(
        index=index,
        family=run["model"]["config"]["model_type"],
        engine=traced.resolved.engine.name,
        asked_bytes=max(asked[name] for name in steps),
        asked_estimate_bytes=unrounded.result.allocated_bytes,
        allocated_bytes=traced.allocated_bytes,
        allocated_estimate_bytes=full_estimate(run).result.allocated_bytes,
        phases={name: (asked[name], ours[name]) for name in steps
                if name in ours and name.startswith(LATER)},
    )


def compare(seed: int, index: int) -> Compared:
    """Run `index` of a seed."""
    return compare_run(run_file(seed, index), index)
