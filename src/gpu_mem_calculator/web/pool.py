"""Calculating processes: long work off the event loop, with a time limit, ended when nobody waits.

A lane is a few processes of a kind. A question waits for one that is free; where too many wait,
the next is told to come back. A process that does not stop when it is interrupted is replaced, and
so is one that has died: its question is asked once more.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
from asyncio.subprocess import PIPE

import msgspec

from .frames import HEAD, Ask, Reply, frame

LOG = logging.getLogger("gpu_mem_calculator.web")
GRACE_SECONDS = 1.0  # for an interrupted question to end


class BusyError(Exception):
    """Too many wait already."""


class LateError(Exception):
    """The time limit is over."""


class Calculator:
    """One calculating process; answers one question at a time."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds  # that a question may take
        self.process: asyncio.subprocess.Process | None = None
        self.pending: asyncio.Future[Reply] | None = None
        self.reading: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start it, and wait until it is warm."""
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "gpu_mem_calculator.web.worker", str(self.seconds),
            stdin=PIPE, stdout=PIPE,
        )  # fmt: skip
        self.pending = asyncio.get_running_loop().create_future()
        self.reading = asyncio.create_task(self._read())
        reply = await self.pending
        if reply.status != 200:
            raise RuntimeError(f"a calculating process does not start: {reply.body.decode()}")

    async def _read(self) -> None:
        """Hand each reply to whoever waits for it."""
        assert self.process is not None
        assert self.process.stdout is not None
        source = self.process.stdout
        try:
            while True:
                data = await source.readexactly(*HEAD.unpack(await source.readexactly(HEAD.size)))
                if self.pending is not None and not self.pending.done():
                    self.pending.set_result(msgspec.msgpack.decode(data, type=Reply))
        except (asyncio.IncompleteReadError, OSError):
            if self.pending is not None and not self.pending.done():
                self.pending.set_exception(ConnectionResetError("the process has died"))

    async def ask(self, data: bytes) -> Reply:
        """One question, already in its frame."""
        assert self.process is not None
        assert self.process.stdin is not None
        if self.reading is None or self.reading.done():
            raise ConnectionResetError("the process has died")
        self.pending = asyncio.get_running_loop().create_future()
        self.process.stdin.write(data)
        await self.process.stdin.drain()
        return await asyncio.shield(self.pending)

    async def quiet(self) -> bool:
        """Interrupt the question at hand; whether the process is ready for the next."""
        assert self.process is not None
        if self.pending is None or self.pending.done():
            return True
        if sys.platform == "win32":  # an interrupt would reach the service, too
            return False
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGINT)
        done, _ = await asyncio.wait({self.pending}, timeout=GRACE_SECONDS)
        return bool(done) and self.pending.exception() is None

    async def stop(self) -> None:
        """End it."""
        if self.process is not None and self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
            await self.process.wait()
        if self.reading is not None:
            await self.reading
        if self.pending is not None and self.pending.done():
            self.pending.exception()  # seen: nobody waits for it any more


class Lane:
    """A few calculating processes, and those who wait for them."""

    def __init__(self, name: str, size: int, *, seconds: float, waiting: int) -> None:
        self.name, self.size, self.seconds, self.most_waiting = name, size, seconds, waiting
        self.waiting = 0
        self.ready = 0
        self.replaced = 0
        self._idle: asyncio.Queue[Calculator] = asyncio.Queue()
        self._all: set[Calculator] = set()
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
        one = Calculator(self.seconds)
        self._all.add(one)
        try:
            await one.start()
        except BaseException:
            self._all.discard(one)
            await one.stop()
            raise
        self.ready += 1
        self._idle.put_nowait(one)

    async def run(self, ask: Ask) -> Reply:
        """The answer; `BusyError` where too many wait, `LateError` after the time limit."""
        if self.waiting >= self.most_waiting:
            raise BusyError
        data = frame(ask)
        try:
            async with asyncio.timeout(self.seconds):
                try:
                    return await self._once(data)
                except ConnectionError:
                    return await self._once(data)
        except TimeoutError:
            raise LateError from None
        except ConnectionError:
            raise BusyError from None

    async def _once(self, data: bytes) -> Reply:
        self.waiting += 1
        try:
            one = await self._idle.get()
        finally:
            self.waiting -= 1
        try:
            reply = await one.ask(data)
        except BaseException:
            self._mend(one)
            raise
        self._idle.put_nowait(one)
        return reply

    def _mend(self, one: Calculator) -> None:
        """Bring a process back to where it can be asked, beside everything else."""
        if not self._closed:
            task = asyncio.create_task(self._mended(one))
            self._mending.add(task)
            task.add_done_callback(self._mending.discard)

    async def _mended(self, one: Calculator) -> None:
        if await one.quiet() and one.reading is not None and not one.reading.done():
            self._idle.put_nowait(one)
            return
        self.ready -= 1
        self.replaced += 1
        LOG.warning("a calculating process is replaced", extra={"fields": {"lane": self.name}})
        self._all.discard(one)
        await one.stop()
        while True:
            try:
                return await self._add()
            except (OSError, RuntimeError) as error:
                LOG.error(str(error), extra={"fields": {"lane": self.name}})
                await asyncio.sleep(GRACE_SECONDS)
