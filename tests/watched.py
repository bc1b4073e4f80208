"""When coverage runs: it makes a test take four times as long, so it stops where it finds nothing.

It watches no further case of a test once two in succession reached no new line. It is off in tests
that draw their examples, and in those of `UNCOVERED`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from coverage import Coverage

HERE = Path(__file__).parent
# whole programs, many examples and code above the floor; other tests cover the same lines
UNCOVERED = """
architecture browser cli container core/test_stage_replay deploy docs examples golden/test_servers
golden/test_training golden/test_versions ground_truth measure/test_launchers properties random_runs
replay/test_histories replay/test_needs serving/test_traced timing/test_measured tools
trace/test_deepspeed_measured trace/test_measured web/test_fuzz web/test_killed
"""
PAUSED = tuple(f"{HERE.name}/{path}" for path in UNCOVERED.split())
WATCHED = (
    "tests/cli/test_backtest",
    "tests/cli/test_infer",
    "tests/cli/test_deepspeed_config",
)  # of cli
QUIET = 2  # cases in succession that reach nothing new
quiet: Counter[str] = Counter()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Watch a case, or do not."""
    test = item.nodeid.partition("[")[0]
    running = Coverage.current()
    if running is None:
        return (yield)
    drawn = getattr(getattr(item, "obj", None), "is_hypothesis_test", False)
    paused = test.startswith(PAUSED) and not test.startswith(WATCHED)
    if drawn or paused or quiet[test] >= QUIET:
        with coverage_off():
            return (yield)
    before = lines_reached(running)
    outcome = yield
    quiet[test] = quiet[test] + 1 if lines_reached(running) == before else 0
    return outcome


@contextmanager
def coverage_off() -> Iterator[None]:
    """Stop coverage, and start it again at the end.

    In a worker of xdist two run: one of the process, one of the tests; pytest-cov's own mark stops
    the second alone.
    """
    stopped: list[Coverage] = []
    while (running := Coverage.current()) is not None:
        running.stop()
        stopped.append(running)
    try:
        yield
    finally:
        for one in reversed(stopped):
            one.start()


def lines_reached(running: Coverage) -> int:
    """Lines and branches that this process's tests have reached so far."""
    collector: Any = running._collector
    return sum(map(len, collector.data.values())) if collector else 0
