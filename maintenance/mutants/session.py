"""A pytest plugin that collects once, records which tests reach which mutant, then forks for each.

A mutant that acts at import needs a process that has not imported the package: it starts pytest
anew with the tests that use its module.
"""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import Phase, settings

from . import switch
from .sites import Site

CPU_S, WALL_S = 10, 240  # what a mutant may take beyond its tests' usual time, and in all
BUDGET_S = float(os.environ["MUTANTS_BUDGET"])  # tests of one mutant, usual CPU seconds
WORKERS = int(os.environ["MUTANTS_WORKERS"])
MOST_FILES = 20  # of a mutant that starts pytest anew, which imports all of them
settings.register_profile(
    "mutants", derandomize=True, database=None, phases=(Phase.explicit, Phase.generate)
)


class Record:
    """Which tests reach a mutant, and the CPU seconds of each test that passes."""

    def __init__(self) -> None:
        self.tests: dict[int, set[str]] = defaultdict(set)
        self.seconds: dict[str, float] = {}
        self.failed: set[str] = set()
        for line in (switch.FOLDER / "record.txt").read_text(encoding="utf-8").splitlines():
            first, test, *rest = line.split("\t")
            if first == "passed":
                self.seconds[test] = float(rest[0])
            elif first == "failed":
                self.failed.add(test)
            else:
                self.tests[int(first)].add(test)

    def anew(self, site: Site) -> bool:
        """Whether a mutant acts when modules are imported, so that a fork would be too late."""
        return site.at_import or "" in self.tests[site.number]

    def chosen(self, site: Site, sites: list[Site]) -> list[str]:
        """The tests of a mutant: those that reach it, those of its package and fast ones first.

        Then the other tests of the same files, which may share a result or a service with those. A
        mutant that none reaches, or that acts at import, is tried with all tests of its package.
        """
        direct = set(self.tests[site.number])
        reached = set(direct)
        near = [f"tests/{site.package}/"]
        if self.anew(site):
            reached |= self.tests[-next(one.number for one in sites if one.path == site.path)]
            near += ["tests/golden/", "tests/contract/"]
        files = {test.partition("::")[0] for test in reached}
        cost = {
            test: seconds * (0.2 if test.startswith(tuple(near)) else 1)
            + 5 * ((test not in direct) + (test not in reached))
            for test, seconds in self.seconds.items()
            if test.partition("::")[0] in files
            or (test.startswith(tuple(near)) and (self.anew(site) or not reached))
        }
        most = MOST_FILES if self.anew(site) else len(files | cost.keys())
        return list(self.within_budget(sorted(cost, key=lambda test: cost[test]), most))

    def within_budget(self, tests: list[str], most_files: int) -> Iterator[str]:
        """The first tests that fit into one mutant's budget, from at most `most_files` files."""
        left, files = BUDGET_S, set[str]()
        for test in tests:
            file = test.partition("::")[0]
            if self.seconds[test] <= left and (file in files or len(files) < most_files):
                left -= self.seconds[test]
                files.add(file)
                yield test


def cpu_seconds() -> float:
    """CPU seconds of this process and its ended children."""
    return sum(os.times()[:4])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A process for one mutant runs its tests in their order."""
    if chosen := os.environ.get("MUTANT_TESTS"):
        order = {test: at for at, test in enumerate(json.loads(Path(chosen).read_text()))}
        items[:] = sorted(
            (item for item in items if item.nodeid in order), key=lambda item: order[item.nodeid]
        )


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Count a test that fails before or after its call, too."""
    if report.failed:
        failures.append(report.nodeid)


failures: list[str] = []


def run_items(items: list[pytest.Item], until_failure: bool) -> bool:
    """Run tests; whether all passed. Caches of formulas are cleared before each."""
    from gpu_mem_calculator.ledger.remember import forget

    for item, following in zip(items, [*items[1:], None], strict=True):
        forget()
        switch.seen.clear()
        start, failed = cpu_seconds(), len(failures)
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        word = "passed" if len(failures) == failed else "failed"
        if not switch.active:
            switch.record(f"{word}\t{item.nodeid}\t{cpu_seconds() - start:.3f}\n")
        if failures and until_failure:
            item.session._setupstate.teardown_exact(None)
            break
    return not failures


def in_fork(work: Callable[[], bool], folder: Path) -> int:
    """Start work in a fork that prints nothing; its process id."""
    pid = os.fork()
    if pid:
        return pid
    os.setsid()
    os.environ["PYTEST_DEBUG_TEMPROOT"] = str(folder)
    folder.mkdir()
    out = os.open(folder / "output", os.O_WRONLY | os.O_CREAT)
    os.dup2(out, 1)
    os.dup2(out, 2)
    try:
        code = 0 if work() else 1
    except BaseException:
        code = 1
    os._exit(code)


def in_forks(works: Mapping[int, Callable[[], bool]]) -> Iterator[tuple[int, int, float]]:
    """Run works side by side: (number, exit status, seconds) of each as it ends."""
    waiting, running, folder = list(works), dict[int, tuple[int, float]](), Path(tempfile.mkdtemp())
    while waiting or running:
        while waiting and len(running) < WORKERS:
            number = waiting.pop(0)
            running[in_fork(works[number], folder / str(number))] = (number, time.monotonic())
        time.sleep(0.02)
        for pid, (number, start) in list(running.items()):
            if time.monotonic() - start > WALL_S and number > 0:
                os.killpg(pid, signal.SIGKILL)
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                del running[pid]
                end_group(pid)
                shutil.rmtree(folder / str(number), ignore_errors=True)
                yield number, status, time.monotonic() - start
    shutil.rmtree(folder, ignore_errors=True)


def end_group(pid: int) -> None:
    """End what a fork's tests left running."""
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def mutant_work(
    site: Site, tests: list[str], items: dict[str, pytest.Item], record: Record
) -> Callable[[], bool]:
    """What the fork of one mutant does: its tests, until one fails; without tests it survives."""

    def work() -> bool:
        if not tests:
            return True
        usual = sum(record.seconds[test] for test in tests)
        limit = int(cpu_seconds() + CPU_S + 4 * usual)
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5))
        os.environ["MUTANT"] = str(site.number)
        switch.active = site.number
        if not record.anew(site):
            return run_items([items[test] for test in tests], until_failure=True)
        order = Path(os.environ["PYTEST_DEBUG_TEMPROOT"]) / "tests.json"
        order.write_text(json.dumps(tests))
        os.environ["MUTANT_TESTS"] = str(order)
        files = sorted({test.partition("::")[0] for test in tests})
        os.execv(sys.executable, [sys.executable, "-m", "pytest", "-x", *switch.OPTIONS, *files])

    return work


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Record tests that are not yet recorded, then try each mutant; writes results.jsonl."""
    if os.environ.get("MUTANT_TESTS"):
        return None
    start = time.monotonic()
    record_tests(session.items)
    record = Record()
    print(f"{len(record.seconds)} tests recorded in {time.monotonic() - start:.0f} s", flush=True)
    try_mutants({item.nodeid: item for item in session.items}, record)
    return True


def record_tests(items: list[pytest.Item]) -> None:
    """Run each test that is not yet recorded once, the files side by side."""
    before = Record()
    by_file: dict[Path, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.nodeid not in before.seconds and item.nodeid not in before.failed:
            by_file[item.path].append(item)
    files = list(by_file.values())
    shares = [list(chain(*files[share::WORKERS])) for share in range(WORKERS)]
    list(in_forks({-at: partial(run_items, share, False) for at, share in enumerate(shares)}))


def try_mutants(items: dict[str, pytest.Item], record: Record) -> None:
    """Run the tests of each mutant that is asked for and was not killed before."""
    sites = switch.read_sample()
    only = json.loads(os.environ["MUTANTS_ONLY"])
    results = switch.FOLDER / "results.jsonl"
    rows = map(json.loads, results.read_text().splitlines())
    killed = {row["number"] for row in rows if row["status"]}
    by_number = {s.number: s for s in sites if s.number in ({*only} or {s.number}) - killed}
    tests = {
        number: [test for test in record.chosen(site, sites) if test in items]
        for number, site in by_number.items()
    }
    order = random.Random(0).sample(sorted(tests), len(tests))  # all packages from the start
    works = {n: mutant_work(by_number[n], tests[n], items, record) for n in order}
    with results.open("a") as file:
        for number, status, seconds in in_forks(works):
            row = {"number": number, "tests": len(tests[number]), "status": status, "s": seconds}
            print(json.dumps(row), file=file, flush=True)
            word = "killed" if status else "survived"
            print(f"mutant {number}: {word}, {seconds:.0f} s", flush=True)
