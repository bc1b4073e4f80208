"""Plans of the service: the same as the command's, refused in sentences."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

QUESTION = {"model": "gpt2", "gpus": 1, "gpu": "h200", "serve": "vllm", "context": 1024, "users": 4}


def test_plans_are_those_of_the_command(client: httpx.Client) -> None:
    """As data; with `page` also as the HTML that the page shows."""
    found = client.post("/api/plan", json=QUESTION)
    assert found.status_code == 200, found.text
    data = found.json()
    assert data["plans"][0]["run"]["inference"]["engine"] == "vllm"
    assert data["html"] is None
    shown = client.post("/api/plan", params={"page": "true"}, json=QUESTION).json()
    assert shown["plans"] == data["plans"]
    assert shown["html"].startswith('<h2 class="asked">gpt2 on 1 × NVIDIA H200')
    assert "<script" not in shown["html"]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ([], "the body must be an object"),
        ({}, "plan needs a MODEL"),
        ({"model": "gpt2", "gpus": 0}, "plan.gpus=0 must be a whole number from 1"),
        ({"modl": "gpt2"}, "plan.modl is not a known key; did you mean 'model'?"),
        ({"model": "gpt2", "vary": {"tp": 8}}, "must be an object with a list of values"),
        ({"model": "gpt2", "gpu": "h100"}, "plan needs the number of GPUs"),
        ({"candidates": ["/etc/passwd"]}, "plan.candidates="),
        ({"model": "gpt2", "gpus": 8, "gpu": 4091}, "4091"),
    ],
)
def test_a_mistake_is_one_sentence(client: httpx.Client, body: Any, said: str) -> None:
    """A file of the service cannot be named."""
    found = client.post("/api/plan", json=body)
    assert found.status_code == 422, found.text
    assert len(found.json()["problems"]) == 1
    assert said in found.json()["problems"][0]
