"""Calculating processes: they keep long work off the event loop, within a time limit.

A lane is a few processes for one kind of task. A task waits for an idle process, and clients take
turns; what can wait comes after what cannot. Where too many wait, or one waits too long, it is
refused. Waiting does not count as running. A task whose client has left is interrupted. A process
that does not stop when it is interrupted is replaced, and so is one that has died: its task is run
once more. None of several clients has every process of a lane.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar, cast

import msgspec

from .logs import LOG
from .observability import READY, WAITING
from .worker_messages import HEAD, TaskReply, TaskRequest, frame

Waiter = TypeVar("Waiter")


class FairQueue(Generic[Waiter]):
    """Waiters by client, those that can wait after all others; each client may have at most `share`
    processes at the same time.
    """

    def __init__(self, share: int) -> None:
        self.share = share
        # of those that cannot wait, and of those that can
        self._turns = OrderedDict[str, deque[Waiter]](), OrderedDict[str, deque[Waiter]]()
        self._running: Counter[str] = Counter()

    def __len__(self) -> int:
        """How many wait."""
        return sum(map(self.waiting, (False, True)))

    def waiting(self, later: bool) -> int:
        """How many wait of those that can wait, or of those that cannot."""
        return sum(map(len, self._turns[later].values()))

    def add(self, client: str, waiter: Waiter, *, later: bool = False) -> None:
        """Append a waiter to those of its client; `later`: it can wait."""
        self._turns[later].setdefault(client, deque()).append(waiter)

    def discard(self, client: str, waiter: Waiter) -> None:
        """Remove a waiter that no longer waits."""
        for turns in self._turns:
            waiters = turns.get(client, deque())
            if waiter in waiters:
                waiters.remove(waiter)
            if not waiters:
                turns.pop(client, None)

    def start_next(self) -> Waiter | None:
        """The first waiter of the client whose turn it is; it now runs. None where none may."""
        for turns in self._turns:
            client = next((name for name in turns if self._running[name] < self.share), None)
            if client is not None:
                waiter = turns[client].popleft()
                turns.move_to_end(client)
                self.discard(client, waiter)
                self._running[client] += 1
                return waiter
        return None

    def end(self, client: str) -> None:
        """A task of the client has ended."""
        self._running[client] -= 1
        self._running += Counter()  # without clients that have no task


Place = asyncio.Future["CalculatorProcess"]  # in the queue; its result is the process
Tell = Callable[[TaskReply], None]  # takes a part of a reply
GRACE_SECONDS = 1.0  # for an interrupted task to end
END_SECONDS = 10.0  # for one that streams to send what it has


class QueueFullError(Exception):
    """The lane has as many waiting tasks as it allows, or this one has waited too long."""


class TimeLimitError(Exception):
    """The task ran longer than the lane's limit."""


class CalculatorProcess(asyncio.SubprocessProtocol):
    """One calculating process, which runs one task at a time."""

    def __init__(self, seconds: float, words: Sequence[str] = ()) -> None:
        self.seconds = seconds  # that a task may take
        self.words = words  # of its command, beside the seconds
        self.alive = False
        self.settled = asyncio.Event()  # set while no task runs
        self.ended = asyncio.Event()
        self._data = bytearray()  # the part of a reply received so far
        self._pending: asyncio.Future[TaskReply] | None = None
        self._tell: Tell | None = None
        self.transport: asyncio.SubprocessTransport | None = None

    async def start(self) -> None:
        """Start the process, and wait for its first reply: it is warmed up."""
        loop = asyncio.get_running_loop()
        reply = self._expect()
        module = ("-m", "gpu_mem_calculator.web.worker")
        command = (sys.executable, *module, str(self.seconds), *self.words)
        transport, _ = await loop.subprocess_exec(lambda: self, *command, stderr=None)
        self.transport = transport
        self.alive = True
        self._pipe = cast("asyncio.WriteTransport", transport.get_pipe_transport(0))
        first = await reply
        if first.status != 200:
            raise RuntimeError(f"a calculating process does not start: {first.body.decode()}")

    def _expect(self) -> asyncio.Future[TaskReply]:
        self.settled.clear()
        self._pending = asyncio.get_running_loop().create_future()
        return self._pending

    def pipe_data_received(self, _fd: int, data: bytes) -> None:
        """Collect replies; give each that is whole to the task that waits."""
        self._data += data
        while (reply := self._whole_reply()) is not None:
            waits = self._pending is not None and not self._pending.done()
            if not reply.more:
                self.settled.set()
                if waits and self._pending is not None:
                    self._pending.set_result(reply)
            elif waits and self._tell is not None:
                self._tell(reply)

    def _whole_reply(self) -> TaskReply | None:
        """The first reply received, None where it is not whole."""
        if len(self._data) < HEAD.size:
            return None
        (length,) = HEAD.unpack_from(self._data)
        end = HEAD.size + length
        if len(self._data) < end:
            return None
        reply = msgspec.msgpack.decode(self._data[HEAD.size : end], type=TaskReply)
        del self._data[:end]
        return reply

    def process_exited(self) -> None:
        """The process has died, or was stopped: fail the task that waits."""
        self.alive = False
        self.ended.set()
        if self._pending is not None and not self._pending.done():
            self._pending.set_exception(ConnectionResetError("the process has died"))

    async def ask(self, data: bytes, tell: Tell | None = None) -> TaskReply:
        """Run one task, given as a framed message; `tell` takes the parts of a reply."""
        if not self.alive:
            raise ConnectionResetError("the process has died")
        reply = self._expect()
        self._tell = tell
        self._pipe.write(data)
        return await reply

    async def interrupt(self) -> bool:
        """Interrupt the running task; True where the process is ready for the next."""
        if self.alive and not self.settled.is_set() and sys.platform != "win32":
            assert self.transport is not None
            self.transport.send_signal(signal.SIGINT)  # on Windows it would reach the service, too
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.settled.wait(), GRACE_SECONDS)
        return self.alive and self.settled.is_set()

    async def stop(self) -> None:
        """Kill the process and wait for its end."""
        if self.transport is not None:
            with contextlib.suppress(ProcessLookupError):
                self.transport.kill()
            await self.ended.wait()
            self.transport.close()
        if self._pending is not None and self._pending.done() and not self._pending.cancelled():
            self._pending.exception()  # retrieve it, so that asyncio does not report it


class ProcessLane:
    """A few calculating processes, and the queue of tasks that wait for one.

    - waiting: how many may wait of those that can wait, and of those that cannot
    - words: of the command of its processes, beside their seconds
    """

    def __init__(
        self,
        name: str,
        size: int,
        *,
        seconds: float,
        waiting: int,
        share: int = 0,
        words: Sequence[str] = (),
    ) -> None:
        self.name, self.size, self.seconds, self.most_waiting = name, size, seconds, waiting
        self.ready, self.words = 0, words
        self._gauge = WAITING.labels(name)
        self.replaced = 0
        self._idle: list[CalculatorProcess] = []
        self._queue: FairQueue[Place] = FairQueue(share or size)
        self._all: set[CalculatorProcess] = set()
        self._recoveries: set[asyncio.Task[None]] = set()
        self._closed = False

    async def start(self) -> None:
        """Start every process at the same time."""
        await asyncio.gather(*(self._add() for _ in range(self.size)))

    async def stop(self) -> None:
        """Stop every process."""
        self._closed = True
        for task in self._recoveries:
            task.cancel()
        await asyncio.gather(*self._recoveries, return_exceptions=True)
        await asyncio.gather(*(one.stop() for one in self._all))

    async def _add(self) -> None:
        one = CalculatorProcess(self.seconds, self.words)
        self._all.add(one)
        try:
            await one.start()
        except BaseException:
            self._all.discard(one)
            await one.stop()
            raise
        self.ready += 1
        READY.labels(self.name).set(self.ready)
        self._release(one)

    async def run(
        self,
        ask: TaskRequest,
        client: str = "",
        *,
        seconds: float | None = None,
        later: bool = False,
        tell: Tell | None = None,
    ) -> TaskReply:
        """The reply to a task. Raises `QueueFullError` or `TimeLimitError`.

        - seconds: its time limit, where it is another than the lane's
        - later: it can wait, so it runs after those that cannot
        - tell: takes the parts of a reply that streams
        """
        # one that streams ends by itself, with what it has
        limit = (seconds or self.seconds) + (END_SECONDS if ask.streams else 0)
        for _ in range(2):
            with contextlib.suppress(ConnectionError):
                return await self._run_once(ask, client, limit, later, tell)
        raise QueueFullError

    async def _run_once(
        self, ask: TaskRequest, client: str, seconds: float, later: bool, tell: Tell | None
    ) -> TaskReply:
        one = await self._idle_process(client, later)
        try:
            async with asyncio.timeout(seconds):
                reply = await one.ask(frame(ask), tell)
        except BaseException as error:
            self._recover(one)
            if isinstance(error, TimeoutError):
                raise TimeLimitError from None
            raise
        else:
            self._release(one)
            return reply
        finally:
            self._queue.end(client)
            self._serve_waiting()

    async def _idle_process(self, client: str, later: bool) -> CalculatorProcess:
        """An idle process; waits for one, at most as long as a task may run."""
        place: Place = asyncio.get_running_loop().create_future()
        self._queue.add(client, place, later=later)
        self._serve_waiting()
        if not place.done() and self._queue.waiting(later) > self.most_waiting:
            self._queue.discard(client, place)
            raise QueueFullError
        try:
            async with asyncio.timeout(self.seconds):
                return await asyncio.shield(place)
        except BaseException as error:
            self._leave(client, place)
            if isinstance(error, TimeoutError):
                raise QueueFullError from None
            raise

    def _leave(self, client: str, place: Place) -> None:
        """Give up a place in the queue, and the process where it has one already."""
        if place.done():
            self._queue.end(client)
            self._release(place.result())
        self._queue.discard(client, place)
        self._gauge.set(len(self._queue))

    def _release(self, one: CalculatorProcess) -> None:
        """A process is idle: the next task may have it."""
        self._idle.append(one)
        self._serve_waiting()

    def _serve_waiting(self) -> None:
        """Give idle processes to the tasks whose turn it is."""
        while self._idle and (place := self._queue.start_next()):
            place.set_result(self._idle.pop(0))
        self._gauge.set(len(self._queue))

    def _recover(self, one: CalculatorProcess) -> None:
        """Recover a process in the background: interrupt it, or replace it."""
        if not self._closed:
            task = asyncio.create_task(self._recovered(one))
            self._recoveries.add(task)
            task.add_done_callback(self._recoveries.discard)

    async def _recovered(self, one: CalculatorProcess) -> None:
        if await one.interrupt():
            self._release(one)
            return
        self.ready -= 1
        self.replaced += 1
        READY.labels(self.name).set(self.ready)
        LOG.warning("a calculating process is replaced", extra={"fields": {"lane": self.name}})
        self._all.discard(one)
        await one.stop()
        while True:
            try:
                return await self._add()
            except (OSError, RuntimeError) as error:
                LOG.error(str(error), extra={"fields": {"lane": self.name}})
                await asyncio.sleep(GRACE_SECONDS)
