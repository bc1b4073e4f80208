"""Whom pods run as, whose account and queue they have, and in which order objects are made."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from .cases import CASES, JOBS, PODS, Case, documents, rendered
from .policies import pods, without_tests
from .render import ChartError, texts

QUEUE = "kueue.x-k8s.io/queue-name"
ROLE = {"AWS_ENDPOINT_URL_S3", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}


def specs(name: str) -> list[dict[str, Any]]:
    """The specification of every pod of a case."""
    return [pod.spec for pod in pods(documents(name))]


def test_the_cluster_may_choose_the_user() -> None:
    """OpenShift's restricted-v2 refuses a pod that names a user, a group or an fsGroup."""
    for spec in specs("override-openshift"):
        assert spec["securityContext"] == {
            "runAsNonRoot": True,
            "seccompProfile": {"type": "RuntimeDefault"},
        }


@pytest.mark.parametrize("left_out", ["runAsUser", "runAsGroup", "fsGroup"])
def test_each_of_the_three_can_be_left_out(left_out: str) -> None:
    """The others stay; without an fsGroup there is no policy on how it is set."""
    case = replace(
        CASES["guide-number"], sets=("numParameters=1e9", f"podSecurity.{left_out}=null")
    )
    (spec,) = [pod.spec["securityContext"] for pod in pods(rendered(case))]
    assert left_out not in spec
    assert {"runAsUser", "runAsGroup", "fsGroup"} - {left_out} <= set(spec)
    assert ("fsGroupChangePolicy" in spec) == ("fsGroup" in spec)


def test_a_users_number_is_written_in_full() -> None:
    """1000650000, where a float would be 1.00065e+09."""
    case = Case({"numParameters": "1e9", "podSecurity": {"runAsUser": 1_000_650_000}})
    (text,) = [one for one in texts(case.values).values() if "kind: Job" in one]
    assert "runAsUser: 1000650000\n" in text


@pytest.mark.parametrize("mode", ["deepspeed", "estimate", "measure-trainjob", "web"])
def test_pods_have_the_account_and_the_priority_that_are_named(mode: str) -> None:
    """In every mode, the test's pod included."""
    for spec in specs(f"{mode}-all"):
        assert spec["serviceAccountName"] == PODS["serviceAccountName"]
        assert spec["automountServiceAccountToken"] is True
        assert spec["priorityClassName"] == PODS["priorityClassName"]


def test_an_account_alone_brings_no_token() -> None:
    """A role of AWS has a token of another kind, which its webhook mounts."""
    (spec,) = specs("override-aws")
    assert spec["serviceAccountName"] == "model-reader"
    assert spec["automountServiceAccountToken"] is False


def test_a_bucket_of_aws_needs_no_host_and_no_keys() -> None:
    """Nothing stands in the way of what the account's role brings."""
    (spec,) = specs("override-aws")
    given = {one["name"]: one.get("value") for one in spec["containers"][0]["env"]}
    assert not ROLE & set(given)
    assert given["AWS_REGION"] == "eu-west-1"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("deepspeed-all", "Job"),
        ("deepspeed-kaiwo", "KaiwoJob"),
        ("measure-trainjob-all", "TrainJob"),
    ],
)
def test_a_job_bears_the_queue_that_it_waits_in(name: str, kind: str) -> None:
    """On the object that Kueue looks at; the chart's own labels stay."""
    (job,) = [one for one in documents(name) if one["kind"] == kind]
    labels, annotations = job["metadata"]["labels"], job["metadata"]["annotations"]
    assert labels[QUEUE] == JOBS["jobLabels"][QUEUE]
    assert labels["app.kubernetes.io/name"] == "gpu-mem-calculator"
    assert annotations == JOBS["jobAnnotations"]
    assert not any(QUEUE in pod.labels for pod in pods(documents(name)))


def test_a_train_jobs_runtime_is_made_first() -> None:
    """The operator refuses a TrainJob without it (pkg/runtime/core/trainingruntime.go, 2.3.0)."""
    kinds = [one["kind"] for one in documents("measure-trainjob")]
    assert kinds.index("TrainingRuntime") < kinds.index("TrainJob")
    (text,) = [one for one in texts(CASES["measure-trainjob"].values).values() if "TrainJob" in one]
    assert "\nkind: List\n" in text


def test_a_train_jobs_names_fit() -> None:
    """Its last pod's name has 63 characters at most, and begins with a letter."""
    case = CASES["measure-trainjob"]
    rendered(replace(case, name="a" * 54))  # and -node-0-1
    with pytest.raises(ChartError, match="has 55 characters and may have 54"):
        rendered(replace(case, name="a" * 55))
    with pytest.raises(ChartError, match="begin it with a letter"):
        rendered(replace(case, name="1a"))


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("web")])
def test_the_tests_pod_is_made_by_helm_test_alone(name: str) -> None:
    """A pod and a Service name of the release; nothing else is a hook."""
    made = {one["metadata"]["name"] for one in without_tests(documents(name))}
    (test,) = [one for one in documents(name) if one not in without_tests(documents(name))]
    assert (test["kind"], test["metadata"]["name"]) == ("Pod", "page-test")
    (service,) = [one for one in documents(name) if one["kind"] == "Service"]
    (container,) = test["spec"]["containers"]
    port = service["spec"]["ports"][0]["port"]
    assert container["args"][-1] == f"http://{service['metadata']['name']}:{port}"
    assert service["metadata"]["name"] in made
