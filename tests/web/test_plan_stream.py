"""Plans as a stream of events: what is known so far, all of it, or why there is not all."""

from __future__ import annotations

import io
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from gpu_mem_calculator.advice.planner.answers.plans import Plans
from gpu_mem_calculator.web import plan_question
from gpu_mem_calculator.web.plan_question import plan_events
from gpu_mem_calculator.web.settings import ServiceSettings
from gpu_mem_calculator.web.worker import TaskInterrupted, WorkerProcess
from gpu_mem_calculator.web.worker_messages import TaskReply
from tests.report.plans_fixture import some_plans

from ..services import running

ACCEPT = {"accept": "text/event-stream"}
SMALL = {"model": "gpt2", "gpus": 2, "gpu": "h200", "seq_len": 512, "global_batch": 4}
SMALL |= {"engine": "pytorch_ddp"}
# a search of many seconds
LARGE = {"model": "llama3.1-70b", "gpus": 64, "gpu": "h100", "seq_len": 8192, "global_batch": 1024}
Event = tuple[str, dict[str, Any]]


def events(response: httpx.Response) -> Iterator[Event]:
    """The events of a stream, as they come."""
    name = ""
    for line in response.iter_lines():
        kind, _, text = line.partition(": ")
        if kind == "event":
            name = text
        elif kind == "data":
            yield name, json.loads(text)


def streamed(client: httpx.Client, question: dict[str, Any]) -> list[Event]:
    """All events of a question."""
    with client.stream("POST", "/api/plan", json=question, headers=ACCEPT) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        return list(events(response))


def test_plans_come_while_they_are_found(client: httpx.Client) -> None:
    """Progress, the ranked list before it is replayed, and at the end the answer without events."""
    found = streamed(client, SMALL)
    names = [name for name, _ in found]
    assert {*names} == {"progress", "plan", "done"}
    assert names[-1] == "done"
    waiting = [one["replayed"] for name, data in found if name == "plan" for one in data["plans"]]
    assert False in waiting
    parts = [data["part"] for name, data in found if name == "progress"]
    assert all(0 <= part <= 1 for part in parts)
    last = found[-1][1]
    assert last["complete"] is True
    assert all(one["replayed"] for one in last["plans"])
    whole = client.post("/api/plan", json=SMALL).json()
    assert last["plans"] == whole["plans"]
    assert last["front"] == whole["front"]


def test_the_same_question_again_is_remembered(client: httpx.Client) -> None:
    """The answer comes at once, with no search before it."""
    first = streamed(client, SMALL)[-1]
    assert streamed(client, SMALL) == [first]


def test_a_mistake_has_its_status(client: httpx.Client) -> None:
    """In the names of the body, not of the command's options."""
    found = client.post("/api/plan", json={"model": "gpt2"}, headers=ACCEPT)
    assert found.status_code == 422
    (problem,) = found.json()["problems"]
    assert "add gpu h100" in problem


def test_who_leaves_frees_the_search_and_a_plan_delays_no_calculation() -> None:
    """A client's plan under way: its calculation is answered, and once it leaves, so is a plan."""
    settings = ServiceSettings(log_level="error", plan_processes=1)
    with running(settings) as address, httpx.Client(base_url=address, timeout=120) as client:
        with client.stream("POST", "/api/plan", json=LARGE, headers=ACCEPT) as response:
            assert next(name for name, _ in events(response) if name == "plan")
            calculated = client.post("/api/calculate", json={"model": {"name": "gpt2"}})
            assert calculated.status_code == 200
        left = time.monotonic()
        assert streamed(client, SMALL)[-1][1]["complete"] is True
        assert time.monotonic() - left < 30  # the search that was left takes longer on any machine
        assert 'lane="plan",outcome="left"' in client.get("/metrics").text


def test_the_limit_keeps_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plans so far are the last event, which says that they are not all."""
    told: list[str] = []

    def searching(_body: Any, *, progress: Any, changed: Any) -> Plans:
        changed(some_plans)
        time.sleep(0.02)
        progress("replaying, 1 of 20", 0.05)
        raise AssertionError("the search went on")

    monkeypatch.setattr(plan_question, "asked_plans", searching)
    done = plan_events({}, page=False, seconds=0.01, tell=lambda name, _: told.append(name))
    assert told == ["plan"]
    assert done.complete is False
    assert len(done.plans) == len(some_plans().plans)
    assert done.problems == ["the search was stopped after 0.01 seconds, the limit of this service"]


def test_a_limit_before_the_first_plan_is_late() -> None:
    """Nothing is there to be kept."""
    with pytest.raises(TimeoutError):
        plan_events(LARGE, page=False, seconds=1e-9, tell=lambda *_: None)


def test_a_part_is_sent_in_whole() -> None:
    """An interrupt while a part is written ends the task after it."""

    class Target(io.BytesIO):
        def write(self, data: Any) -> int:
            process.interrupt(2, None)
            return super().write(data)

    target = Target()
    process = WorkerProcess(io.BytesIO(), target)
    process.busy = True
    with pytest.raises(TaskInterrupted):
        process.tell(TaskReply(200, b"part", more=True))
    assert b"part" in target.getvalue()


def test_a_plan_waits_for_a_process_of_its_own() -> None:
    """With all of them busy the stream says so, and nobody else's plan is lost."""
    settings = ServiceSettings(log_level="error", plan_processes=1)
    with running(settings) as address, httpx.Client(base_url=address, timeout=120) as client:
        begun, leave = threading.Event(), threading.Event()

        def occupy() -> None:
            with client.stream("POST", "/api/plan", json=LARGE, headers=ACCEPT) as response:
                coming = events(response)
                next(coming)
                begun.set()
                leave.wait(60)

        other = threading.Thread(target=occupy)
        other.start()
        assert begun.wait(60)
        with client.stream("POST", "/api/plan", json=SMALL, headers=ACCEPT) as response:
            found = events(response)
            assert next(found)[1]["text"] == "waiting for a free process"
            leave.set()
            assert [*found][-1][1]["complete"] is True
        other.join()
