"""How fast an estimate's own stream is, as ratios to a loop measured in the same run.

For Llama-3-70B under FSDP2, and for every run of tests/ground_truth/runs.jsonl that trains:

- `allocation_stream`: the unrolled ledger, written out as allocations and frees;
- `replay`: that stream through the allocator's model;
- `needs`: the least cap, by bisection;

each as a multiple of a loop that only sums up the stream's sizes, in seconds of the processor.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from replay import sum_sizes

from gpu_mem_calculator.estimates.calculator import full_estimate
from gpu_mem_calculator.lab.backtest.rows import read_rows
from gpu_mem_calculator.pytorch.replay.needs import needs_bytes
from gpu_mem_calculator.pytorch.replay.replays import replay
from gpu_mem_calculator.pytorch.replay.stream import AllocationStream
from gpu_mem_calculator.runfile.resolve.resolved_run import ResolvedRun
from gpu_mem_calculator.training.step.stream import allocation_stream

ROOT = Path(__file__).parents[1]
ROUNDS = 3
LLAMA_70B = "fsdp2-llama3-70b-w64-b1-s4096-ckpt"
Times = dict[str, float]  # seconds of each part


def least_seconds(work: Callable[[], Any], rounds: int) -> tuple[float, Any]:
    """The shortest of a few times, and what comes out."""
    best, found = float("inf"), None
    for _ in range(rounds):
        start = time.process_time()
        found = work()
        best = min(best, time.process_time() - start)
    return best, found


def written(resolved: ResolvedRun) -> AllocationStream:
    """The stream of the first stage."""
    run = replace(resolved.run, unrolled=True)
    return allocation_stream(resolved.engine.ledger(run), int(run.micro_batches))


def timed(resolved: ResolvedRun, rounds: int) -> tuple[Times, int]:
    """Seconds of each part for one run, and the number of its events."""
    made, asked = least_seconds(lambda: written(resolved), rounds)
    parts = {
        "stream": made,
        "replay": least_seconds(lambda: replay(asked, resolved.allocator), rounds)[0],
        "needs": least_seconds(lambda: needs_bytes(asked, resolved.allocator), rounds)[0],
        "loop": least_seconds(lambda: sum_sizes(asked), rounds)[0],
    }
    return parts, len(asked.events)


def show(title: str, times: Times, events: int) -> None:
    """A line for each part."""
    print(f"{title}, {events:,} events")
    for part in ("stream", "replay", "needs"):
        ratio = times[part] / times["loop"]
        print(f"  {part:8} {times[part] * 1e3:7.0f} ms   {ratio:6.0f} x a bare loop")


def main() -> None:
    """Print the tables."""
    rows = read_rows(ROOT / "tests" / "ground_truth" / "runs.jsonl")
    found = {row.id: full_estimate(row.config, replay=False).resolved for row in rows}
    show("Llama-3-70B, FSDP2, 64 ranks", *timed(found[LLAMA_70B], ROUNDS))
    total, events = dict.fromkeys(("stream", "replay", "needs", "loop"), 0.0), 0
    runs = [resolved for resolved in found.values() if resolved.engine.streams]
    for resolved in runs:
        times, count = timed(resolved, 1)
        events += count
        total = {part: total[part] + times[part] for part in total}
    show(f"{len(runs)} measured runs", total, events)


if __name__ == "__main__":
    main()
