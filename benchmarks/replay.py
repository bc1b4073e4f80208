"""How fast the allocator's model is, on recorded streams, as ratios in one run.

- millions of events a second in C, and how many times the loop in Python, which replays each event;
- the least cap (`needs_bytes`) of a stream, and of one of 140,000 events, as a ratio to one replay.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.pytorch.replay.recorded import load

from gpu_mem_calculator.pytorch.replay import allocator
from gpu_mem_calculator.pytorch.replay.allocator import ReplayRun
from gpu_mem_calculator.pytorch.replay.needs import needs_bytes
from gpu_mem_calculator.pytorch.replay.plan import ReplayPlan
from gpu_mem_calculator.pytorch.replay.replays import replay, start_replay
from gpu_mem_calculator.pytorch.replay.settings import AllocatorSettings
from gpu_mem_calculator.pytorch.replay.stream import AllocationStream

ROUNDS = 7
AIM = 15
CASES = [
    ("accum4-llama3.2-1b", "plain"),
    ("accum4-llama3.2-1b", "expandable"),
    ("fam-gemma3-1b", "plain"),
    ("lora-llama2-7b-r16-all-ckpt", "plain"),
    ("fsdp2-llama2-7b-w8-b2-s4096-ckpt", "cap-tight"),
    ("fsdp2-llama2-7b-w8-b2-s4096-ckpt", "cap-split128"),
    ("fsdp2-llama2-7b-w8-b2-s4096-ckpt", "cap-gc60"),
]


def least_seconds(work: Callable[[], Callable[[], object]]) -> float:
    """The least CPU time of what `work` has prepared."""
    times = []
    for _ in range(ROUNDS):
        prepared = work()
        start = time.process_time()
        prepared()
        times.append(time.process_time() - start)
    return min(times)


def repeated(stream: AllocationStream, times: int) -> AllocationStream:
    """A stream over and over, with everything freed in between."""
    count = len(stream.sizes)
    alive = set(range(count)) - {~event for event in stream.events if event < 0}
    once = [*stream.events, *(~tensor for tensor in sorted(alive))]
    events = [e + i * count if e >= 0 else e - i * count for i in range(times) for e in once]
    return AllocationStream.of(stream.sizes * times, events)


def main() -> None:
    """Print the table."""
    allocator.repeated_window = lambda *_: None  # type: ignore[assignment]
    for name, run in CASES:
        stream, runs = load(name)
        settings, cap = AllocatorSettings.parse(runs[run].alloc_conf), runs[run].cap_bytes
        plan = ReplayPlan(stream, settings)
        slow, fast = (
            least_seconds(lambda s=start, p=plan, m=cap: s(p, m).finish)  # type: ignore[misc]
            for start in (ReplayRun, start_replay)
        )
        rate = len(stream.events) / fast / 1e6
        print(f"{name + ' ' + run:46} {rate:5.1f} M/s {slow / fast:5.1f} x Python (aim: {AIM})")
    long = repeated(load("accum4-llama3.2-1b")[0], 3)
    for stream in (load("ckpt-llama3.2-3b")[0], long):
        once = least_seconds(lambda s=stream: partial(replay, s))  # type: ignore[misc]
        needs = least_seconds(lambda s=stream: partial(needs_bytes, s))  # type: ignore[misc]
        label = f"needs, {len(stream.events):,} events"
        print(f"{label:46} {needs / once:5.1f} x a replay (aim: 12)")


if __name__ == "__main__":
    main()
