"""`POST /api/diagnose`: why a run died, by what it printed."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

pytest.importorskip("starlette")

OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.32 GiB. GPU 0 has a total"
    " capacity of 79.15 GiB of which 1.00 GiB is free."
)
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
