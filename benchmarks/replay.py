"""How fast the allocator's model is, on recorded streams, as ratios to a trivial loop.

- milliseconds for 50,000 events, and how many times a loop that only sums sizes takes;
- the least cap (`needs_bytes`) of each stream, and of one of 140,000 events.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.pytorch.replay.recorded import load

from gpu_mem_calculator.pytorch.replay.allocator import replay
from gpu_mem_calculator.pytorch.replay.needs import needs_bytes
from gpu_mem_calculator.pytorch.replay.settings import AllocatorSettings
from gpu_mem_calculator.pytorch.replay.stream import AllocationStream

ROUNDS = 5
EVENTS = 50_000
CASES = [
    ("accum4-llama3.2-1b", "plain"),
    ("accum4-llama3.2-1b", "expandable"),
    ("fam-gemma3-1b", "plain"),
    ("lora-llama2-7b-r16-all-ckpt", "plain"),
    ("fsdp2-llama2-7b-w8-b2-s4096-ckpt", "cap-tight"),
    ("fsdp2-llama2-7b-w8-b2-s4096-ckpt", "cap-split128"),
    ("fsdp2-llama2-7b-w8-b2-s4096-ckpt", "cap-gc60"),
]


def least_seconds(work: Callable[[], object]) -> float:
    """The shortest of a few times."""
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def sum_sizes(stream: AllocationStream) -> int:
    """The least that any replay does: follow what is alive."""
    sizes, alive, peak = stream.sizes, 0, 0
    for event in stream.events:
        if event >= 0:
            alive += sizes[event]
            if alive > peak:
                peak = alive
        else:
            alive -= sizes[~event]
    return peak


def repeated(stream: AllocationStream, times: int) -> AllocationStream:
    """A stream over and over, with everything freed in between."""
    count = len(stream.sizes)
    alive = set(range(count)) - {~event for event in stream.events if event < 0}
    once = [*stream.events, *(~tensor for tensor in sorted(alive))]
    events = [e + i * count if e >= 0 else e - i * count for i in range(times) for e in once]
    return AllocationStream.of(stream.sizes * times, events)


def main() -> None:
    """Print the table."""
    for name, run in CASES:
        stream, runs = load(name)
        settings, cap = AllocatorSettings.parse(runs[run].alloc_conf), runs[run].cap_bytes
        ours = least_seconds(lambda s=stream, c=settings, m=cap: replay(s, c, m))  # type: ignore[misc]
        plain = least_seconds(lambda s=stream: sum_sizes(s))  # type: ignore[misc]
        ms = ours * 1e3 * EVENTS / len(stream.events)
        label = f"{name} {run}"
        print(f"{label:47} {ms:4.0f} ms, {ours / plain:3.0f} x a bare loop   (aim: under 150 ms)")
    long = repeated(load("accum4-llama3.2-1b")[0], 3)
    for label, stream in (("recorded", load("ckpt-llama3.2-3b")[0]), ("long", long)):
        seconds = least_seconds(lambda s=stream: needs_bytes(s))  # type: ignore[misc]
        label = f"needs, {label}, {len(stream.events):,} events"
        print(f"{label:47} {seconds * 1e3:4.0f} ms                       (aim: under 1,000 ms)")


if __name__ == "__main__":
    main()
