"""The API asked what its own description allows, and what it does not: never an error of ours."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.specs.openapi.checks import positive_data_acceptance

from gpu_mem_calculator.serving import server_names
from gpu_mem_calculator.training.engines import engine_names
from gpu_mem_calculator.web.addresses import CALCULATIONS, SLOW
from gpu_mem_calculator.web.export import EXPORTS
from gpu_mem_calculator.web.routes import openapi
from tests.web.bodies import SAMPLE, Body

DOCUMENT = openapi()
RUN = {"$ref": "#/components/schemas/RunOrText"}
GPT2: Body = {"model": {"name": "gpt2"}, "hardware": {"gpu": "h100-80gb-sxm", "num_gpus": 1}}
ADAPTER = {"r": 8.0, "target_modules": "all-linear", "dropout": None}
RUNS: dict[str, Body] = {
    **{name: GPT2 | {"engine": {"type": name}} for name in engine_names()},
    **{name: GPT2 | {"inference": {"engine": name}} for name in server_names()},
    "tensorrt_llm": GPT2
    | {"inference": {"engine": "tensorrt_llm", "engine_generation": "tensorrt"}},
    "transformers": GPT2 | {"inference": {"engine": "transformers", "prompt_len": 512}},
    "adapter": GPT2 | {"training": {"lora": ADAPTER}, "inference": None, "engine": None},
    "too large": GPT2 | {"hardware": {"gpu_memory_gb": 0.001}, "training": {"batch_size": 1}},
    "no room": GPT2 | {"hardware": {"gpu_memory_gb": 0.5}, "inference": {"engine": "vllm"}},
    "sample": SAMPLE,
}
FEW = ("deepspeed", "vllm", "adapter")


def _runs() -> list[tuple[str, str]]:
    """The operations whose body is a run file, each with every run; the slow ones with a few."""
    paths = [
        path
        for path, found in DOCUMENT["paths"].items()
        if _body(found) == RUN and path != "/api/export/{format}"
    ]
    slow = {route.path for route in CALCULATIONS if route.lane == SLOW}
    return [(path, name) for path in paths for name in (FEW if path in slow else RUNS)]


def _body(found: dict[str, Any]) -> Any:
    content = found.get("post", {}).get("requestBody", {}).get("content", {})
    return content.get("application/json", {}).get("schema")


def _described(*, coverage: bool) -> schemathesis.BaseSchema:
    """The description; with coverage every bound and every type of it is tried by itself."""
    made = schemathesis.openapi.from_dict(DOCUMENT)
    made.config.phases.coverage.enabled = coverage
    return made


api = _described(coverage=False)
small = _described(coverage=True).exclude(
    lambda one: (
        "RunOrText" in str(one.operation.definition.raw)
        or "Anything" in str(one.operation.definition.raw)
    )
)


def check(case: schemathesis.Case, service: str) -> None:
    """The status, the type and the shape that the description promises; no 500.

    What the schema allows may still be refused: it cannot say that sizes go together.
    """
    found = case.call(base_url=service, timeout=60)
    assert found.status_code < 500
    case.validate_response(found, excluded_checks=[positive_data_acceptance])


@api.parametrize()
@settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_every_answer_is_as_described(case: schemathesis.Case, service: str) -> None:
    """What the description allows, and what it forbids."""
    check(case, service)


@small.parametrize()
@settings(max_examples=1, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_every_bound_of_the_small_operations(case: schemathesis.Case, service: str) -> None:
    """Those that take no run file are quick enough for all of it."""
    check(case, service)


@pytest.mark.parametrize(("path", "name"), _runs())
def test_real_runs_are_answered_as_described(client: httpx.Client, path: str, name: str) -> None:
    """Every engine and server, in the shape of its answer; or refused in the shape of that."""
    found = client.post(path, json=RUNS[name])
    serves = RUNS[name].get("inference") is not None
    refused = path == "/api/infer" and not serves
    assert found.status_code == (422 if refused else 200), found.text
    api[path]["POST"].validate_response(found)


@pytest.mark.parametrize("form", EXPORTS)
def test_exports_are_as_described(client: httpx.Client, form: str) -> None:
    """Each of them."""
    found = client.post(f"/api/export/{form}", json=SAMPLE)
    assert found.status_code == 200, found.text
    api["/api/export/{format}"]["POST"].validate_response(found)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/import", {"text": "model: {name: gpt2}"}),
        ("/api/import", {"text": '{"model_type": "llama"}'}),
        ("/api/validate", [None]),
    ],
)
def test_other_bodies_are_answered_as_described(client: httpx.Client, path: str, body: Any) -> None:
    """Pasted texts, and what is no run file."""
    found = client.post(path, json=body)
    assert found.status_code == 200, found.text
    api[path]["POST"].validate_response(found)


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("/api/look?width=400&width=500", GPT2, "more than once"),
        ("/api/infer?contexts=1,%202", RUNS["vllm"], "nothing but commas"),
        ("/api/import", {"text": "", "more": 1}, "an object with a text"),
    ],
)
def test_what_the_description_forbids_is_refused(
    client: httpx.Client, path: str, body: Body, said: str
) -> None:
    """In a sentence, never taken for something else."""
    found = client.post(path, json=body)
    assert (found.status_code, said in found.text) == (422, True), found.text
