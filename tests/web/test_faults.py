"""A fault of ours: 500 with an id, and nothing of it; the log has the id and the traceback."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import subprocess
import sys
from typing import Any

import pytest
from starlette.responses import Response
from starlette.types import Message

from gpu_mem_calculator.web import logs, worker
from gpu_mem_calculator.web.observability import RequestObserver
from gpu_mem_calculator.web.routes import _response
from gpu_mem_calculator.web.worker import reply_or_refusal
from gpu_mem_calculator.web.worker_messages import TaskReply, TaskRequest

SECRET = "hf_Zq7hunter2Kx9Aa11Bb22Cc33"
LOGGER = "gpu_mem_calculator.web"


def broken(*_: Any) -> Any:
    """A task with a fault, whose message has a value of the client."""
    raise KeyError(f"private value {SECRET}")


@pytest.fixture
def records(monkeypatch: pytest.MonkeyPatch) -> list[logging.LogRecord]:
    """The records of the service's log."""
    found: list[logging.LogRecord] = []
    handler = logging.Handler()
    monkeypatch.setattr(handler, "emit", found.append)
    monkeypatch.setattr(logs.LOG, "handlers", [handler])
    monkeypatch.setattr(logs.LOG, "level", logging.INFO)
    return found


def check(response: Response, records: list[logging.LogRecord]) -> None:
    """The answer has the id of the log's record, and neither the traceback nor the value."""
    body = json.loads(bytes(response.body))
    assert response.status_code == 500
    assert response.headers["x-fault-id"] == body["id"]
    assert body["id"] in body["detail"]
    assert body["problems"] == [body["detail"]]
    assert re.search(rb"KeyError|private|Traceback|\.py", bytes(response.body)) is None
    line = json.loads(logs.JsonLines().format(records[0]))
    assert line["id"] == body["id"]
    assert "KeyError" in line["trace"]
    assert "Traceback" in line["trace"]
    assert SECRET not in line["trace"]


def test_a_task_with_a_fault(
    monkeypatch: pytest.MonkeyPatch, records: list[logging.LogRecord]
) -> None:
    """In a calculating process."""
    monkeypatch.setitem(worker.TASKS, "calculate", broken)
    check(_response(reply_or_refusal(TaskRequest("calculate", b"{}", {}))), records)


def test_the_service_itself_with_a_fault(records: list[logging.LogRecord]) -> None:
    """In the process that answers, before anything was sent."""
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def app(*_: Any) -> None:
        broken()

    scope = {"type": "http", "method": "GET", "path": "/", "headers": []}
    asyncio.run(RequestObserver(app, {})(scope, broken, send))
    head = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    check(Response(sent[1]["body"], sent[0]["status"], head), records)
    assert "content-security-policy" in head


def test_two_faults_have_two_ids(
    monkeypatch: pytest.MonkeyPatch, records: list[logging.LogRecord]
) -> None:
    """And an answer without a fault has none."""
    monkeypatch.setitem(worker.TASKS, "calculate", broken)
    ids = {reply_or_refusal(TaskRequest("calculate", b"{}", {})).fault for _ in range(3)}
    assert len(ids) == 3
    assert "x-fault-id" not in _response(TaskReply(200, b"{}")).headers


def test_a_calculating_process_writes_its_log_as_json() -> None:
    """On stderr, where its pipe is not."""
    code = "from gpu_mem_calculator.web import logs; logs.start_logs('warning')\n"
    code += "try: {}['x']\nexcept KeyError as e: logs.log_fault('abc', e)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert json.loads(ended.stderr)["id"] == "abc"
    assert ended.stdout == ""


def test_without_numpy_a_plan_is_not_the_clients_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """501, with the sentence that says what is missing."""
    monkeypatch.setitem(sys.modules, "numpy", None)
    asked = json.dumps({"model": "gpt2", "gpus": 2, "gpu": "h100"}).encode()
    reply = reply_or_refusal(TaskRequest("plan", asked, {}))
    assert reply.status == 501
    assert "plan needs numpy" in json.loads(reply.body)["detail"]
