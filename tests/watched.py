"""When coverage runs: it makes a test take four times as long, so it stops where it finds nothing.

It watches no further case of a test once two in succession reached no new line. It is off in tests
that draw their examples, and in those of `unwatched.txt`.
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
# Folders, files and tests, a line each: whole programs, code above the floor, and tests that are
# slow under coverage while cheaper ones reach the same lines. What is not listed is watched.
UNCOVERED = (HERE / "unwatched.txt").read_text("utf-8").split()
PAUSED = tuple(f"{HERE.name}/{path}" for path in UNCOVERED)
OF_CLI = ("backtest", "deepspeed_config", "infer")  # files of cli that are watched
WATCHED = tuple(f"{HERE.name}/cli/test_{name}.py" for name in OF_CLI)
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
    if drawn or not is_watched(test) or quiet[test] >= QUIET:
        with coverage_off():
            return (yield)
    before = lines_reached(running)
    outcome = yield
    quiet[test] = quiet[test] + 1 if lines_reached(running) == before else 0
    return outcome


def is_watched(test: str) -> bool:
    """Whether a test is watched by its name; a file of cli is, but for its tests in the list."""
    if test.startswith(WATCHED):
        return test not in PAUSED
    return not test.startswith(PAUSED)


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
