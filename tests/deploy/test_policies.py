"""Every case keeps every policy, and every policy can be broken."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from . import references
from .cases import CASES, documents
from .policies import POLICIES, Document, pods, without_tests

# What a case's pods need that its chart does not make: named in its values, or their defaults.
OUTSIDE = {
    "guide-hub": {("Secret", "hf-token")},
    "guide-hub-yaml": {("Secret", "hf-token")},
    "guide-bucket": {("Secret", "minio-credentials")},
    "deepspeed-all": {("Secret", "hub"), ("Secret", "keys"), ("Secret", "our-registry")},
    "estimate-all": {("Secret", "minio-credentials"), ("Secret", "our-registry")},
    "estimate-configmap": {("ConfigMap", "my-run")},
    "measure-one-all": {("ConfigMap", "my-run"), ("Secret", "our-registry")},
    "measure-job-all": {("PersistentVolumeClaim", "results")},
    "measure-trainjob-all": {("PersistentVolumeClaim", "results"), ("Secret", "our-registry")},
    "web-all": {("Secret", "hf-token"), ("Secret", "our-registry")},
}


@pytest.mark.parametrize("check", POLICIES)
def test_every_case_keeps_a_policy(check: str) -> None:
    """Nothing is wrong."""
    wrong = {name: list(POLICIES[check](documents(name))) for name in CASES}
    assert {name: found for name, found in wrong.items() if found} == {}


@pytest.mark.parametrize("name", CASES)
def test_what_a_case_needs_is_said(name: str) -> None:
    """A config map or a secret is the chart's own, or one that the values name."""
    assert references.outside(documents(name)) == OUTSIDE.get(name, set())


Change = Callable[[Document, Document, Document], object]  # the documents by kind, spec, container


def security(**given: Any) -> Change:
    """A change of the container's security."""
    return lambda _, __, one: one["securityContext"].update(given)


def pod(**given: Any) -> Change:
    """A change of the pod."""
    return lambda _, spec, __: spec.update(given)


def container(**given: Any) -> Change:
    """A change of the container."""
    return lambda _, __, one: one.update(given)


def of(kind: str, /, *path: str, **given: Any) -> Change:
    """A change within a document of that kind."""

    def change(held: Document, _: Document, __: Document) -> None:
        inner = held[kind]
        for key in path:
            inner = inner[int(key)] if isinstance(inner, list) else inner[key]
        inner.update(given)

    return change


def gone(*path: str) -> Change:
    """A key of the container that is taken away."""

    def change(_: Document, __: Document, one: Document) -> None:
        for key in path[:-1]:
            one = one[key]
        del one[path[-1]]

    return change


def both(*changes: Change) -> Change:
    """Several changes at once."""
    return lambda *held: [change(*held) for change in changes]


# policy: changes of the case `web-all` that break it.
BROKEN: dict[str, list[Change]] = {
    "not_root": [
        pod(securityContext={"runAsUser": 1000}),
        security(runAsUser=0),
        pod(securityContext={"runAsUser": 0, "runAsNonRoot": True}),
    ],
    "nothing_more_than_its_volumes": [
        security(readOnlyRootFilesystem=False),
        security(allowPrivilegeEscalation=True),
        security(privileged=True),
        security(capabilities={"drop": ["ALL"], "add": ["SYS_ADMIN"]}),
        security(capabilities={"drop": ["NET_RAW"]}),
        pod(securityContext={}),
    ],
    "bounded": [
        gone("resources", "limits"),
        gone("resources", "requests", "memory"),
        pod(volumes=[{"name": "tmp", "emptyDir": {}}]),
    ],
    "pinned_images": [
        container(image="gpu-mem-calculator"),
        container(image="gpu-mem-calculator:latest"),
        container(image="host:5000/gpu-mem-calculator"),
    ],
    "probes": [gone("startupProbe"), gone("readinessProbe"), gone("livenessProbe")],
    "no_cluster_rights": [
        of("Service", kind="ClusterRoleBinding"),
        of("Service", kind="ServiceAccount"),
        pod(automountServiceAccountToken=True, serviceAccountName=""),
        pod(automountServiceAccountToken=None),
        pod(enableServiceLinks=True),
    ],
    "nothing_of_the_node": [
        pod(hostNetwork=True),
        pod(hostPID=True),
        pod(hostIPC=True),
        pod(volumes=[{"name": "root", "hostPath": {"path": "/"}}]),
        container(ports=[{"containerPort": 8000, "hostPort": 80}]),
    ],
    "goes_with_the_release": [
        of("Service", "metadata", namespace="kube-system"),
        of("Service", kind="ClusterRole"),
        of("Deployment", "metadata", annotations={"helm.sh/resource-policy": "keep"}),
        of("Deployment", "metadata", annotations={"helm.sh/hook": "pre-install"}),
        of("Pod", "metadata", annotations={"helm.sh/hook": "test"}),
    ],
    "labelled": [
        of("Ingress", "metadata", labels={}),
        of("Ingress", "metadata", "labels", team="a b"),
    ],
    "no_nulls": [of("Service", "spec", type=None), container(args=["serve", None])],
    "selectors_match": [
        of("Service", "spec", selector={"app.kubernetes.io/instance": "other"}),
        of("NetworkPolicy", "spec", podSelector={"matchLabels": {"team": "training"}}),
        of("Service", "spec", selector={references.JOB_NAME: "page"}),
    ],
    "targets_are_there": [
        of("HorizontalPodAutoscaler", "spec", "scaleTargetRef", name="other"),
        of("Deployment", "spec", replicas=2),
        of("Service", "metadata", name="other"),
        of("Service", "spec", ports=[{"name": "http", "port": 8080, "targetPort": "https"}]),
        of("NetworkPolicy", "spec", ingress=[{"ports": [{"port": 9000}]}]),
        container(ports=[{"name": "web", "containerPort": 8000}]),
    ],
    "names_resolve": [
        pod(subdomain="page"),
        pod(subdomain="nowhere"),
        both(
            of("Service", "spec", clusterIP="None"),
            pod(subdomain="page"),
            container(args=["--master-addr", "other-0.page"]),
        ),
    ],
    "disruption_leaves_room": [
        of("PodDisruptionBudget", "spec", minAvailable="100%"),
        of("PodDisruptionBudget", "spec", minAvailable=3),
    ],
    "volumes_are_there": [
        pod(volumes=[]),
        gone("workingDir"),
        container(env=[]),
        container(volumeMounts=[{"name": "tmp", "mountPath": "/tmp"}]),
        container(env=[{"name": "HOME", "value": "/tmp"}] * 2),
    ],
}


@pytest.mark.parametrize(
    ("check", "change"), [(check, one) for check, changes in BROKEN.items() for one in changes]
)
def test_a_policy_can_be_broken(check: str, change: Change) -> None:
    """What breaks it is found, and said in a sentence."""
    changed = copy.deepcopy(documents("web-all"))
    (held,) = pods(without_tests(changed))
    change({one["kind"]: one for one in changed}, held.spec, held.spec["containers"][0])
    assert list(POLICIES[check](changed))


def test_every_policy_has_been_broken() -> None:
    """A policy without a counter-example might be one that cannot fail."""
    assert set(BROKEN) == set(POLICIES)


def test_what_is_needed_can_be_missing() -> None:
    """A config map that the chart forgot to make shows as one from outside."""
    left = [one for one in documents("override-estimate") if one["kind"] != "ConfigMap"]
    assert references.outside(left) == {("ConfigMap", "release-run")}
