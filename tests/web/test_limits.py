"""Bounds of a request: its time, who waits, who leaves, and processes that die."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import signal
import socket
import time
from collections.abc import Coroutine
from typing import Any

import httpx
import msgspec
import pytest

from gpu_mem_calculator.web.pool import ProcessLane, QueueFullError, TimeLimitError
from gpu_mem_calculator.web.reply_cache import ENTRY_BYTES, ReplyCache
from gpu_mem_calculator.web.settings import ServiceSettings
from gpu_mem_calculator.web.worker import TaskInterrupted, WorkerProcess
from gpu_mem_calculator.web.worker_messages import HEAD, TaskReply, TaskRequest, frame

from ..services import running

QUICK = TaskRequest("calculate", b'{"model": {"name": "gpt2"}}', {})
# as many layers as may be: a replay of seconds
LONG_RUN = {
    "model": {"num_layers": 1024, "hidden_size": 1024, "num_attention_heads": 16},
    "hardware": {"num_gpus": 8},
    "engine": {"type": "deepspeed", "zero_stage": 3},
}
LONG = TaskRequest("replay", msgspec.json.encode(LONG_RUN), {})


def on_a_lane(
    work: Any, *, seconds: float = 60, waiting: int = 8, size: int = 1, share: int = 0
) -> Any:
    """What happens on a lane of its own."""

    async def lived() -> Any:
        lane = ProcessLane("test", size, seconds=seconds, waiting=waiting, share=share)
        await lane.start()
        try:
            made: Coroutine[Any, Any, Any] = work(lane)
            return await made
        finally:
            await lane.stop()

    return asyncio.run(lived())


def test_a_question_over_the_limit_ends_and_the_next_is_answered() -> None:
    """The process is interrupted, not replaced."""

    async def work(lane: ProcessLane) -> tuple[TaskReply, int]:
        with pytest.raises(TimeLimitError):
            await lane.run(LONG)
        lane.seconds = 60
        return await lane.run(QUICK), lane.replaced

    reply, replaced = on_a_lane(work, seconds=0.3)
    assert reply.status == 200
    assert replaced == 0


def test_work_that_nobody_waits_for_ends() -> None:
    """The process is free again long before it would have been done."""

    async def work(lane: ProcessLane) -> float:
        task = asyncio.create_task(lane.run(LONG))
        await asyncio.sleep(0.5)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        began = time.perf_counter()
        assert (await lane.run(QUICK)).status == 200
        return time.perf_counter() - began

    assert on_a_lane(work) < 5


def test_a_process_that_dies_is_replaced_and_its_question_asked_again() -> None:
    """Nobody notices but the log."""

    async def work(lane: ProcessLane) -> tuple[TaskReply, int]:
        (one,) = lane._all
        task = asyncio.create_task(lane.run(QUICK))
        await asyncio.sleep(0)
        assert one.transport is not None
        os.kill(one.transport.get_pid(), signal.SIGKILL)
        return await task, lane.replaced

    reply, replaced = on_a_lane(work)
    assert reply.status == 200
    assert replaced == 1


def test_a_process_that_will_not_stop_is_replaced() -> None:
    """One that is stopped does not hear an interrupt."""

    async def work(lane: ProcessLane) -> tuple[TaskReply, int]:
        (one,) = lane._all
        assert one.transport is not None
        os.kill(one.transport.get_pid(), signal.SIGSTOP)
        with pytest.raises(TimeLimitError):
            await lane.run(QUICK)
        lane.seconds = 60
        return await lane.run(QUICK), lane.replaced

    reply, replaced = on_a_lane(work, seconds=0.5)
    assert reply.status == 200
    assert replaced == 1


def test_who_comes_when_too_many_wait_is_told() -> None:
    """And those who wait are answered."""

    async def work(lane: ProcessLane) -> list[Any]:
        tasks = [asyncio.create_task(lane.run(QUICK)) for _ in range(8)]
        return await asyncio.gather(*tasks, return_exceptions=True)

    found = on_a_lane(work, waiting=2)
    busy = [one for one in found if isinstance(one, QueueFullError)]
    assert len(busy) == 5
    assert all(one.status == 200 for one in found if isinstance(one, TaskReply))


@pytest.mark.proof
def test_a_client_that_leaves_frees_the_lane() -> None:
    """A replay of minutes, its client gone: the next replay is answered soon."""
    body = msgspec.json.encode(LONG_RUN)
    head = f"POST /api/replay HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    with running(ServiceSettings(log_level="error")) as address:
        port = int(address.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as leaver:
            leaver.sendall(head.encode() + body)
            time.sleep(0.7)
        began = time.perf_counter()
        found = httpx.post(f"{address}/api/replay", json={"model": {"name": "gpt2"}}, timeout=60)
        assert found.status_code == 200
        assert time.perf_counter() - began < 10
        assert 'outcome="left"' in httpx.get(f"{address}/metrics").text


def test_limits_are_sentences() -> None:
    """The time of a calculation, the time and the size of a body."""
    settings = ServiceSettings(
        log_level="error", slow_seconds=0.5, plan_seconds=0.4, body_seconds=0.5, body_bytes=1000
    )
    with running(settings) as address:
        late = httpx.post(f"{address}/api/replay", json=LONG_RUN, timeout=60)
        assert late.status_code == 504
        assert "longer than 0.5 seconds" in late.json()["detail"]
        question = {"model": "llama3.1-8b", "gpus": 64, "gpu": "h200", "global_batch": 256}
        late = httpx.post(f"{address}/api/plan", json=question, timeout=60)
        assert (late.status_code, "longer than 0.4 seconds" in late.json()["detail"]) == (504, True)
        large = httpx.post(f"{address}/api/replay", content=iter([b"x" * 600] * 2))
        assert large.status_code == 413
        port = int(address.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as slow:
            slow.sendall(b"POST /api/replay HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{")
            slow.settimeout(20)
            assert slow.recv(100).startswith(b"HTTP/1.1 408")


def test_a_process_answers_until_its_pipe_closes() -> None:
    """One reply for each question; what goes wrong is a sentence, too."""
    asks = [QUICK, TaskRequest("calculate", b"{", {})]
    source, target = io.BytesIO(b"".join(map(frame, asks))), io.BytesIO()
    WorkerProcess(source, target).run()
    found, data = [], target.getvalue()
    while data:
        (length,) = HEAD.unpack(data[: HEAD.size])
        found.append(msgspec.msgpack.decode(data[HEAD.size :][:length], type=TaskReply).status)
        data = data[HEAD.size + length :]
    assert found == [200, 422]


def test_what_goes_wrong_inside_is_told_without_its_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client gets a sentence; what the operator's log has is tested in `test_faults`."""
    from gpu_mem_calculator.web import worker
    from gpu_mem_calculator.web import worker as tasks

    def broken(_body: Any, _options: Any) -> Any:
        raise KeyError("a secret")

    def hungry(_body: Any, _options: Any) -> Any:
        raise MemoryError

    monkeypatch.setitem(tasks.TASKS, "broken", broken)
    monkeypatch.setitem(tasks.TASKS, "hungry", hungry)
    reply = worker.reply_or_refusal(TaskRequest("broken", b"", {}))
    assert reply.status == 500
    assert b"secret" not in reply.body
    assert worker.reply_or_refusal(TaskRequest("hungry", b"", {})).status == 413


def test_an_interrupt_ends_only_what_is_at_hand() -> None:
    """One that comes too late does nothing."""
    process = WorkerProcess(io.BytesIO(), io.BytesIO())
    process.interrupt(2, None)
    process.busy = True
    with pytest.raises(TaskInterrupted):
        process.interrupt(2, None)


def test_answers_are_kept_within_their_bytes() -> None:
    """The ones not asked for longest go first."""
    known = ReplyCache(4000)
    questions = [("calculate", b"%d" % i, ()) for i in range(10)]
    for question in questions:
        known.keep(question, TaskReply(200, b"x" * 500))
        known.get(questions[0])
    assert known.bytes <= 4000
    assert known.get(questions[0]) is not None
    assert known.get(questions[1]) is None
    assert known.get(questions[9]) is not None


def test_an_answer_counts_with_its_question() -> None:
    """Both bodies and the options, beside what an entry takes."""
    known = ReplyCache(10_000)
    known.keep(("calculate", b"q" * 300, (("width", "80"),)), TaskReply(200, b"x" * 40))
    assert known.bytes == ENTRY_BYTES + 300 + 40 + len("width") + len("80")
