"""Calculating processes: long work off the event loop, with a time limit, ended when nobody waits.

A lane is a few processes of a kind. A question waits for one that is free; where too many wait,
the next is told to come back. A process that does not stop when it is interrupted is replaced, and
so is one that has died: its question is asked once more.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from typing import cast

import msgspec

from .observability import LOG, READY, WAITING
from .worker_messages import HEAD, TaskReply, TaskRequest, frame

GRACE_SECONDS = 1.0  # for an interrupted question to end


class QueueFullError(Exception):
    """Too many wait already."""


class TimeLimitError(Exception):
    """The time limit is over."""


class CalculatorProcess(asyncio.SubprocessProtocol):
    """One calculating process; answers one question at a time."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds  # that a question may take
        self.alive = False
        self.settled = asyncio.Event()  # no question is at hand
        self.ended = asyncio.Event()
        self._data = bytearray()  # of a reply that is not all there
        self._pending: asyncio.Future[TaskReply] | None = None
        self.transport: asyncio.SubprocessTransport | None = None

    async def start(self) -> None:
        """Start it, and wait until it is warm."""
        loop = asyncio.get_running_loop()
        reply = self._expect()
        made, _ = await loop.subprocess_exec(
            lambda: self, sys.executable, "-m", "gpu_mem_calculator.web.worker", str(self.seconds),
            stderr=None,
        )  # fmt: skip
        self.transport = made
        self.alive = True
        self._pipe = cast("asyncio.WriteTransport", made.get_pipe_transport(0))
        first = await reply
        if first.status != 200:
            raise RuntimeError(f"a calculating process does not start: {first.body.decode()}")

    def _expect(self) -> asyncio.Future[TaskReply]:
        self.settled.clear()
        self._pending = asyncio.get_running_loop().create_future()
        return self._pending

    def pipe_data_received(self, _fd: int, data: bytes) -> None:
        """Hand a whole reply to whoever waits for it."""
        self._data += data
        if len(self._data) < HEAD.size:
            return
        (length,) = HEAD.unpack_from(self._data)
        if len(self._data) < HEAD.size + length:
            return
        reply = msgspec.msgpack.decode(self._data[HEAD.size :], type=TaskReply)
        self._data.clear()
        self.settled.set()
        if self._pending is not None and not self._pending.done():
            self._pending.set_result(reply)

    def process_exited(self) -> None:
        """It has died, or was ended."""
        self.alive = False
        self.ended.set()
        if self._pending is not None and not self._pending.done():
            self._pending.set_exception(ConnectionResetError("the process has died"))

    async def ask(self, data: bytes) -> TaskReply:
        """One question, already in its frame."""
        if not self.alive:
            raise ConnectionResetError("the process has died")
        reply = self._expect()
        self._pipe.write(data)
        return await reply

    async def quiet(self) -> bool:
        """Interrupt the question at hand; whether the process is ready for the next."""
        if self.alive and not self.settled.is_set() and sys.platform != "win32":
            assert self.transport is not None
            self.transport.send_signal(signal.SIGINT)  # elsewhere it would reach the service, too
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.settled.wait(), GRACE_SECONDS)
        return self.alive and self.settled.is_set()

    async def stop(self) -> None:
        """End it."""
        if self.transport is not None:
            with contextlib.suppress(ProcessLookupError):
                self.transport.kill()
            await self.ended.wait()
            self.transport.close()
        if self._pending is not None and self._pending.done() and not self._pending.cancelled():
            self._pending.exception()  # nobody waits for it any more


class ProcessLane:
    """A few calculating processes, and those who wait for them."""

    def __init__(
        self, name: str, size: int, *, seconds: float, waiting: int, long: bool = False
    ) -> None:
        self.name, self.size, self.seconds, self.most_waiting = name, size, seconds, waiting
        self.long = long  # its answers take long enough to watch for clients that leave
        self.waiting = 0
        self.ready = 0
        self._gauge = WAITING.labels(name)
        self.replaced = 0
        self._idle: asyncio.Queue[CalculatorProcess] = asyncio.Queue()
        self._all: set[CalculatorProcess] = set()
        self._mending: set[asyncio.Task[None]] = set()
        self._closed = False

    async def start(self) -> None:
        """Start every process at the same time."""
        await asyncio.gather(*(self._add() for _ in range(self.size)))

    async def stop(self) -> None:
        """End every process."""
        self._closed = True
        for task in self._mending:
            task.cancel()
        await asyncio.gather(*self._mending, return_exceptions=True)
        await asyncio.gather(*(one.stop() for one in self._all))

    async def _add(self) -> None:
        one = CalculatorProcess(self.seconds)
        self._all.add(one)
        try:
            await one.start()
        except BaseException:
            self._all.discard(one)
            await one.stop()
            raise
        self.ready += 1
        READY.labels(self.name).set(self.ready)
        self._idle.put_nowait(one)

    async def run(self, ask: TaskRequest) -> TaskReply:
        """The reply. Raises `QueueFullError` or `TimeLimitError`."""
        if self.waiting >= self.most_waiting:
            raise QueueFullError
        data = frame(ask)
        try:
            async with asyncio.timeout(self.seconds):
                try:
                    return await self._once(data)
                except ConnectionError:
                    return await self._once(data)
        except TimeoutError:
            raise TimeLimitError from None
        except ConnectionError:
            raise QueueFullError from None

    async def _once(self, data: bytes) -> TaskReply:
        one = await self._free()
        try:
            reply = await one.ask(data)
        except BaseException:
            self._mend(one)
            raise
        self._idle.put_nowait(one)
        return reply

    async def _free(self) -> CalculatorProcess:
        """A process that can be asked."""
        if not self._idle.empty():
            return self._idle.get_nowait()
        self.waiting += 1
        self._gauge.set(self.waiting)
        try:
            return await self._idle.get()
        finally:
            self.waiting -= 1
            self._gauge.set(self.waiting)

    def _mend(self, one: CalculatorProcess) -> None:
        """Bring a process back to where it can be asked, beside everything else."""
        if not self._closed:
            task = asyncio.create_task(self._mended(one))
            self._mending.add(task)
            task.add_done_callback(self._mending.discard)

    async def _mended(self, one: CalculatorProcess) -> None:
        if await one.quiet():
            self._idle.put_nowait(one)
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
