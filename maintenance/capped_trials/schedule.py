"""Runs tasks in forked processes side by side on one GPU, as far as memory goes."""

from __future__ import annotations

import os
import signal
import time
import traceback
import warnings
from collections.abc import Callable, Sequence

from msgspec import Struct

from gpu_mem_calculator.lab.measure.child_process import end_with_parent
from gpu_mem_calculator.ledger.units import GIB

TICK = 0.05  # seconds between looks at the processes
GRACE = 30.0  # seconds after the deadline until processes are killed
OUTSIDE = 2 * GIB  # of each process on the card, outside torch: CUDA context and NCCL


class Task(Struct, frozen=True, kw_only=True):
    """A function to run in a process of its own.

    - `gpu_bytes`: what torch takes at most; `host_bytes`: what it takes of the host
    - `after`: a task that has to end first
    """

    name: str
    run: Callable[[], None]
    gpu_bytes: int = 0
    host_bytes: int = 0
    after: str = ""


class Limits(Struct, frozen=True, kw_only=True):
    """How many processes run at a time, in how many bytes of the GPU and the host."""

    workers: int
    gpu_bytes: int
    host_bytes: int


class Schedule:
    """Tasks that wait, and those that run."""

    def __init__(self, tasks: Sequence[Task], limits: Limits, deadline: float) -> None:
        self.waiting, self.limits, self.deadline = list(tasks), limits, deadline
        self.running: dict[int, Task] = {}

    def run(self) -> list[Task]:
        """Run every task; returns those that were not started before the deadline, or were killed.

        In order, but a task that does not fit now lets smaller ones pass.
        """
        killed: list[Task] = []
        try:
            while self.running or (self.waiting and time.monotonic() < self.deadline):
                if not self._start_next() and not self._reap():
                    time.sleep(TICK)
                if time.monotonic() > self.deadline + GRACE:
                    killed += self.running.values()
                    break
        finally:
            self._kill()
        return [*self.waiting, *killed]

    def _start_next(self) -> bool:
        """Start the first task that fits now; False where none does."""
        if time.monotonic() > self.deadline or len(self.running) >= self.limits.workers:
            return False
        for task in self.waiting:
            if self._fits(task):
                self.waiting.remove(task)
                self.running[fork(task.run)] = task
                return True
        return False

    def _fits(self, task: Task) -> bool:
        running = list(self.running.values())
        if task.after and task.after in (one.name for one in (*running, *self.waiting)):
            return False
        gpu = sum(one.gpu_bytes + OUTSIDE for one in (*running, task) if one.gpu_bytes)
        host = sum(one.host_bytes for one in (*running, task))
        alone = not running  # a task above the limits runs by itself
        return alone or (gpu <= self.limits.gpu_bytes and host <= self.limits.host_bytes)

    def _reap(self) -> bool:
        """Forget the processes that ended; False where all still run."""
        ended = [pid for pid in self.running if os.waitpid(pid, os.WNOHANG)[0]]
        for pid in ended:
            del self.running[pid]
        return bool(ended)

    def _kill(self) -> None:
        for pid in self.running:
            os.kill(pid, signal.SIGKILL)  # the tries of a process end with it
            os.waitpid(pid, 0)
        self.running.clear()


def fork(function: Callable[[], None]) -> int:
    """Run a function in a forked process; returns its id."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads of torch are idle
        pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        end_with_parent()
        function()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)
