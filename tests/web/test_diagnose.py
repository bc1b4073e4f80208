"""`POST /api/diagnose`: why a run died, by what it printed."""

from __future__ import annotations

import json
import pickle
from typing import Any

import httpx
import pytest

from tests.tools.logs.test_snapshot import LOSS, _snapshot

pytest.importorskip("starlette")

OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.32 GiB. GPU 0 has a total"
    " capacity of 79.15 GiB of which 1.00 GiB is free."
)
SNAPSHOT = pickle.dumps(_snapshot(LOSS), protocol=4)
RUN = {"text": "trl sft --model_name_or_path Qwen/Qwen2.5-1.5B --dataset_name a --max_length 1024"}


@pytest.mark.parametrize("run", [None, RUN, {"model": {"name": "gpt2"}}])
def test_a_text_is_diagnosed(client: httpx.Client, run: Any) -> None:
    """With its run, as a run file or as a text, and without."""
    found = client.post("/api/diagnose", json={"text": OOM, **({"run": run} if run else {})})
    assert found.status_code == 200, found.text
    data = found.json()
    assert data["cause"]["id"]
    assert data["read"][0]["figures"]["tried_bytes"] == round(2.32 * 2**30)
    assert (data["run"] is None) == (run is None)


def test_an_error_that_is_not_one_of_memory_is_in_the_answer(client: httpx.Client) -> None:
    """Which the page shows."""
    text = 'Traceback (most recent call last):\n  File "a.py", line 1\nKeyError: 1\n'
    found = client.post("/api/diagnose", json={"text": text}).json()
    assert (found["cause"], found["error"]) == (None, "KeyError: 1")


STATED = f"vllm serve Qwen/Qwen3-8B\n{OOM.partition(' GPU 0')[0]}"


def test_the_card_of_a_stated_run_is_in_the_address(client: httpx.Client) -> None:
    """And its release; an unknown card is refused, also without a run."""
    found = client.post("/api/diagnose", json={"text": STATED}, params={"gpu": "a40"}).json()
    assert ", A40: " in found["summary"]
    old = {"gpu": "a40", "at": "vllm=0.11.2"}
    found = client.post("/api/diagnose", json={"text": STATED}, params=old).json()
    assert "vLLM 0.11.2, A40: " in found["summary"]
    wrong = client.post("/api/diagnose", json={"text": "hello"}, params={"gpu": "a999"})
    assert wrong.status_code == 422
    assert "not a known card" in wrong.json()["problems"][0]


def test_the_card_of_a_given_run_is_in_the_address(client: httpx.Client) -> None:
    """Of a text as of a snapshot."""
    run = {"model": {"name": "gpt2"}, "hardware": {"gpu": "h100"}}
    texts = client.post("/api/diagnose", json={"text": OOM, "run": run}, params={"gpu": "a40"})
    headers, given = {"content-type": "application/octet-stream"}, {"run": json.dumps(run)}
    asked = {**given, "gpu": "a40"}
    files = client.post("/api/diagnose", content=SNAPSHOT, headers=headers, params=asked)
    for found in (texts, files):
        assert found.json()["run"]["hardware"]["gpu"] == "a40", found.text


def test_a_text_that_says_nothing_has_no_cause(client: httpx.Client) -> None:
    """And says so."""
    data = client.post("/api/diagnose", json={"text": "hello"}).json()
    assert data["cause"] is None
    assert "nothing in the text" in data["summary"]


@pytest.mark.parametrize("body", [{}, [], {"text": 1}, {"text": OOM, "more": 1}])
def test_what_is_no_text_is_refused(client: httpx.Client, body: Any) -> None:
    """With the form that it must have."""
    found = client.post("/api/diagnose", json=body)
    assert found.status_code == 422
    assert "the body must be" in found.json()["problems"][0]


def test_a_snapshot_is_diagnosed(client: httpx.Client) -> None:
    """As the body itself, with its run in the address; the parts stand beside the estimate."""
    headers = {"content-type": "application/octet-stream"}
    found = client.post("/api/diagnose", content=SNAPSHOT, headers=headers)
    assert found.status_code == 200, found.text
    data = found.json()
    assert "logits" in {one["id"] for one in (data["cause"], *data["others"])}
    assert "made in _init_group" in " ".join(data["evidence"])
    run = json.dumps({"model": {"name": "gpt2"}, "hardware": {"gpu": "h100-80gb-sxm"}})
    with_run = client.post("/api/diagnose", content=SNAPSHOT, headers=headers, params={"run": run})
    assert with_run.status_code == 200, with_run.text
    parts = {one["name"]: one for one in with_run.json()["parts"]}
    assert parts["allocated"]["estimated"] is not None
    wrong = client.post("/api/diagnose", content=SNAPSHOT, headers=headers, params={"run": "{"})
    assert wrong.status_code == 422
    assert "the run is not JSON" in wrong.json()["problems"][0]


@pytest.mark.parametrize(
    ("content", "status", "said"),
    [
        (b"\x80\x04cos\nsystem\n.", 422, "not read as torch's memory snapshot"),
        (b"\x80\x04" + b"x" * (64 << 20), 413, "larger than 67,108,864 bytes"),
        (b"no pickle", 422, "not JSON"),
    ],
)
def test_a_file_that_is_no_snapshot_is_refused(
    client: httpx.Client, content: bytes, status: int, said: str
) -> None:
    """And one that is too large."""
    headers = {"content-type": "application/octet-stream"}
    found = client.post("/api/diagnose", content=content, headers=headers)
    assert found.status_code == status, found.text
    assert said in found.json()["problems"][0]


def test_other_addresses_take_no_file(client: httpx.Client) -> None:
    """A pickle is no JSON there."""
    headers = {"content-type": "application/octet-stream"}
    assert client.post("/api/check", content=SNAPSHOT, headers=headers).status_code == 422


def test_the_run_of_a_text_stands_in_the_body(client: httpx.Client) -> None:
    """Not in the address."""
    found = client.post("/api/diagnose", json={"text": OOM}, params={"run": "{}"})
    assert found.status_code == 422
    assert "stands in the body" in found.json()["problems"][0]
