"""How fast a server is answered, as ratios to one estimate in the same run.

- an estimate of each engine, in milliseconds;
- a table of 40 contexts × 25 numbers of sequences, 1,000 cells, as a multiple of that.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

from gpu_mem_calculator.estimates.calculator import full_estimate
from gpu_mem_calculator.estimates.serving.capacity import matrix
from gpu_mem_calculator.serving import server_names

ROUNDS = 15
CONTEXTS = tuple(512 * (i + 1) for i in range(40))
COUNTS = tuple(2 * i + 1 for i in range(25))


def milliseconds(work: Callable[[], object]) -> float:
    """The median of some rounds."""
    work()
    found = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        work()
        found.append(time.perf_counter() - start)
    return 1000 * median(found)


def main() -> None:
    """A line for each engine."""
    print(f"{'engine':<14}{'estimate':>12}{'1,000 cells':>14}{'ratio':>8}")
    for engine in server_names():
        run = {
            "model": {"name": "llama3.1-8b"},
            "inference": {"engine": engine},
            "hardware": {"gpu": "h100-80gb-sxm"},
        }
        estimate = full_estimate(run, replay=False)
        one = milliseconds(lambda run=run: full_estimate(run, replay=False))
        cells = milliseconds(lambda found=estimate: matrix(found, CONTEXTS, COUNTS))
        print(f"{engine:<14}{one:>9.1f} ms{cells:>11.1f} ms{cells / one:>8.1f}")


if __name__ == "__main__":
    main()
