"""What admits jobs to a cluster asks the service: SkyPilot's policy, and Kubernetes for Kueue."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import pytest
import yaml

pytest.importorskip("starlette")

from gpu_mem_calculator.web.addresses import CALCULATIONS
from tests.conftest import ROOT

FITS = "vllm serve Qwen/Qwen3-8B --max-model-len 8192"
SHORT = "vllm serve Qwen/Qwen3-32B --max-model-len 8192"
H100 = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}


def task(run: str) -> dict[str, Any]:
    """The fields that SkyPilot sends: the task and the configuration as YAML."""
    options = {
        "cluster_name": "c",
        "idle_minutes_to_autostop": None,
        "down": False,
        "dryrun": False,
    }
    return {
        "task": f"name: job\nresources:\n  accelerators: A10G:1\nrun: |\n  {run}\n",
        "skypilot_config": "kubernetes:\n  allowed_contexts: [a]\n",
        "request_name": "cluster_launch",
        "request_options": options,
        "at_client_side": False,
        "user": "id: abc\nname: somebody\n",
    }


def sky(client: httpx.Client, request: Any, **query: str) -> httpx.Response:
    """The answer to what SkyPilot sends: JSON in a string of JSON, as it posts it."""
    return client.post("/api/admission/skypilot", params=query, json=json.dumps(request))


def test_a_task_that_fits_comes_back_to_skypilot_as_it_was(client: httpx.Client) -> None:
    """In the form that it decodes: a string of JSON with both texts."""
    request = task(FITS.replace("8B", "0.6B"))
    answer = sky(client, request)
    assert answer.status_code == 200, answer.text
    text = answer.json()
    assert isinstance(text, str)
    assert json.loads(text) == {key: request[key] for key in ("task", "skypilot_config")}
    assert client.post("/api/admission/skypilot", json=request).json() == text


def test_a_task_that_does_not_fit_is_rejected_by_status_400(client: httpx.Client) -> None:
    """Which is what SkyPilot takes for a rejection; it prints the body."""
    answer = sky(client, task(SHORT))
    assert answer.status_code == 400
    assert "will not start" in answer.json()["detail"]


def test_what_cannot_be_told_is_admitted_unless_strict(client: httpx.Client) -> None:
    """And what starts nothing that is known in any case."""
    request = task(SHORT)
    request["task"] = request["task"].replace("accelerators: A10G:1", "cpus: 4")
    assert sky(client, request).status_code == 200
    strict = sky(client, request, strict="true")
    assert strict.status_code == 400
    assert "the card" in strict.text
    for run in ("python -m http.server", "echo done"):
        assert sky(client, task(run), strict="true").status_code in (200, 400)
    assert sky(client, task("echo done"), strict="true").status_code == 200


@pytest.mark.parametrize("body", ["not JSON", {}, {"task": 1}, [1]])
def test_what_skypilot_never_sends_is_refused(client: httpx.Client, body: Any) -> None:
    """With status 422, which SkyPilot reports as a fault of the policy."""
    answer = client.post("/api/admission/skypilot", json=body)
    assert answer.status_code == 422
    assert answer.json()["problems"]


def pod(command: str, labels: dict[str, str]) -> dict[str, Any]:
    """The specification of a Pod with one GPU."""
    container = {
        "name": "server",
        "image": "vllm/vllm-openai:v0.11.0",
        "command": command.split(),
        "resources": {"limits": {"nvidia.com/gpu": "1"}},
    }
    return {"nodeSelector": labels, "containers": [container]}


def workload(command: str, labels: dict[str, str] = H100) -> dict[str, Any]:
    """What Kueue queues for a Job."""
    template = {"spec": pod(command, labels)}
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta1",
        "kind": "Workload",
        "metadata": {"name": "job-serve", "namespace": "team"},
        "spec": {
            "queueName": "gpus",
            "podSets": [{"name": "main", "count": 1, "template": template}],
        },
    }


def job(command: str) -> dict[str, Any]:
    """A Job that Kueue holds back."""
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "serve", "labels": {"kueue.x-k8s.io/queue-name": "gpus"}},
        "spec": {"suspend": True, "template": {"spec": pod(command, H100)}},
    }


def review(made: dict[str, Any] | None, operation: str = "CREATE") -> dict[str, Any]:
    """What the API server sends to a ValidatingAdmissionWebhook."""
    kind = (made or {}).get("kind", "Workload")
    resource = {"group": "kueue.x-k8s.io", "version": "v1beta1", "resource": "workloads"}
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
            "kind": {"group": "kueue.x-k8s.io", "version": "v1beta1", "kind": kind},
            "resource": resource,
            "requestKind": {"group": "kueue.x-k8s.io", "version": "v1beta1", "kind": kind},
            "name": "job-serve",
            "namespace": "team",
            "operation": operation,
            "userInfo": {"username": "somebody", "groups": ["system:authenticated"]},
            "object": made,
            "oldObject": None,
            "options": {"apiVersion": "meta.k8s.io/v1", "kind": "CreateOptions"},
            "dryRun": False,
        },
    }


def decided(client: httpx.Client, body: dict[str, Any], card: str = "") -> Any:
    """The response in the answer, which has the form that Kubernetes asks for.

    It adds its timeout to the address, which may have no query of its own.
    """
    answer = client.post(f"/api/admission/kubernetes{card}?timeout=10s", json=body)
    assert answer.status_code == 200, answer.text
    data = answer.json()
    assert (data["apiVersion"], data["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    assert data["response"]["uid"] == body["request"]["uid"]
    return data["response"]


@pytest.mark.parametrize("kind", [workload, job])
def test_an_object_for_kueue(client: httpx.Client, kind: Any) -> None:
    """What fits is admitted; what does not is denied with our sentence."""
    assert decided(client, review(kind(FITS))) == {
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
        "allowed": True,
    }
    large = kind(SHORT.replace("Qwen3-32B", "Qwen3-235B-A22B"))
    response = decided(client, review(large))
    assert response["allowed"] is False
    assert response["status"]["code"] == 403
    assert "will not start" in response["status"]["message"]


def test_a_card_that_nothing_names_is_a_warning(client: httpx.Client) -> None:
    """The address may name it."""
    body = review(workload(SHORT, {}))
    response = decided(client, body)
    assert response["allowed"] is True
    (warning,) = response["warnings"]
    assert "the card" in warning
    assert len(warning) <= 256
    assert decided(client, body, "/h200") == {"uid": body["request"]["uid"], "allowed": True}
    assert decided(client, body, "/4090")["allowed"] is False
    assert client.post("/api/admission/kubernetes/no-card", json=body).status_code == 422


def test_objects_that_start_nothing_are_admitted(client: httpx.Client) -> None:
    """Also what is deleted."""
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}}
    assert decided(client, review(config))["allowed"] is True
    assert decided(client, review(None, "DELETE"))["allowed"] is True
    assert decided(client, review(workload(SHORT), "DELETE"), "/4090")["allowed"] is True


@pytest.mark.parametrize("version", ["admission.k8s.io/v1beta1", ""])
def test_another_body_is_refused(client: httpx.Client, version: str) -> None:
    """With status 422 and a sentence."""
    body = {**review(workload(FITS)), "apiVersion": version}
    answer = client.post("/api/admission/kubernetes", json=body)
    assert answer.status_code == 422
    assert "not an AdmissionReview" in answer.json()["detail"]


def test_the_configuration_of_the_page() -> None:
    """Kubernetes would take it, and its address is one of the service."""
    page = (ROOT / "docs" / "deploy" / "admission.md").read_text("utf-8")
    (text,) = re.findall(r"```yaml\n(apiVersion.*?)```", page, re.DOTALL)
    made = yaml.safe_load(text)
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    kubernetes_validate.validate(made, kubernetes_validate.latest_version(), strict=True)
    (hook,) = made["webhooks"]
    address = hook["clientConfig"]["url"].partition("your.company")[2]
    patterns = [re.sub(r"\{\w+\}", "[^/]+", one.path) for one in CALCULATIONS]
    assert any(re.fullmatch(one, address) for one in patterns)
    assert "?" not in address  # Kubernetes refuses a query
    assert "your.company/api/admission/skypilot" in page
