"""`POST /api/compare`: two runs side by side."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

pytest.importorskip("starlette")

RUN: dict[str, Any] = {"model": {"name": "gpt2"}, "hardware": {"gpu": "h200"}}


def of_length(seq_len: int) -> dict[str, Any]:
    """A run of some length."""
    return {**RUN, "training": {"batch_size": 1, "seq_len": seq_len}}


def test_two_runs_are_compared(client: httpx.Client) -> None:
    """Part by part; the only key that differs makes the whole difference."""
    found = client.post("/api/compare", json={"a": of_length(256), "b": of_length(512)})
    assert found.status_code == 200, found.text
    data = found.json()
    (cause,) = data["differences"]
    assert cause["key"] == "training.seq_len"
    assert cause["adds_bytes"] == data["b"]["used_bytes"] - data["a"]["used_bytes"] != 0


def test_a_text_may_be_one_of_the_two(client: httpx.Client) -> None:
    """A command beside a run file."""
    text = {"text": "vllm serve Qwen/Qwen3-0.6B --max-model-len 4096"}
    found = client.post("/api/compare", json={"a": text, "b": of_length(256)})
    assert found.status_code == 200, found.text


@pytest.mark.parametrize(
    "body", [{}, [], {"a": RUN}, {"a": RUN, "b": 1}, {"a": {}, "b": {}, "c": {}}]
)
def test_what_is_no_pair_is_refused(client: httpx.Client, body: Any) -> None:
    """With the form that it must have."""
    found = client.post("/api/compare", json=body)
    assert found.status_code == 422
    assert "two runs alone: a and b" in found.json()["problems"][0]
