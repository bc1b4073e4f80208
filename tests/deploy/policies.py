"""What the chart's objects must be: Kubernetes' "restricted" pod security standard, and ours.

A policy takes every document of a case and says what is wrong, a sentence each.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

Document = dict[str, Any]
Policy = Callable[[list[Document]], Iterator[str]]
STANDARD = ("name", "instance", "version", "managed-by", "component")
OWN_LABELS = {f"app.kubernetes.io/{key}" for key in STANDARD} | {"helm.sh/chart"}
# Kinds that live in a namespace; all that the chart may make.
NAMESPACED = {
    "ConfigMap",
    "Deployment",
    "HorizontalPodAutoscaler",
    "Ingress",
    "Job",
    "KaiwoJob",
    "NetworkPolicy",
    "Pod",
    "PodDisruptionBudget",
    "Service",
    "TrainJob",
    "TrainingRuntime",
}
VOLUMES = {
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
}
TEST_HOOK = {
    "helm.sh/hook": "test",
    "helm.sh/hook-delete-policy": "before-hook-creation,hook-succeeded",
}
POLICIES: dict[str, Policy] = {}


def policy(check: Policy) -> Policy:
    """A policy, by its name."""
    POLICIES[check.__name__] = check
    return check


@dataclass(frozen=True)
class Pod:
    """A pod template within a document: whose it is, its labels and its spec."""

    owner: Document
    labels: dict[str, str]
    spec: Document

    def containers(self) -> list[Document]:
        """All of them, those that come first too."""
        return [*self.spec["containers"], *self.spec.get("initContainers", [])]


def pods(documents: list[Document]) -> Iterator[Pod]:
    """Every pod template, however deep in its document."""
    for document in documents:
        yield from (Pod(document, meta, spec) for meta, spec in _templates(document))


def _templates(held: Any) -> Iterator[tuple[dict[str, str], Document]]:
    if isinstance(held, dict):
        spec = held.get("spec")
        if isinstance(spec, dict) and "containers" in spec:
            yield held.get("metadata", {}).get("labels", {}), spec
        for below in held.values():
            yield from _templates(below)
    elif isinstance(held, list):
        for below in held:
            yield from _templates(below)


def containers(documents: list[Document]) -> Iterator[tuple[Pod, Document]]:
    """Every container, with its pod."""
    for pod in pods(documents):
        yield from ((pod, one) for one in pod.containers())


@policy
def not_root(documents: list[Document]) -> Iterator[str]:
    """No pod runs as root, and no container as another than its pod."""
    for pod in pods(documents):
        given = pod.spec.get("securityContext", {})
        if given.get("runAsNonRoot") is not True or given.get("runAsUser") == 0:
            yield "a pod may run as root"
    for _, one in containers(documents):
        if {"runAsUser", "runAsGroup", "runAsNonRoot"} & set(one.get("securityContext", {})):
            yield f"container {one['name']} says anew whom it runs as"


@policy
def nothing_more_than_its_volumes(documents: list[Document]) -> Iterator[str]:
    """A read-only root, no escalation, no capability, the runtime's system call filter."""
    for pod, one in containers(documents):
        given = one.get("securityContext", {})
        if given.get("readOnlyRootFilesystem") is not True:
            yield f"container {one['name']} can write to its root"
        if given.get("allowPrivilegeEscalation") is not False or given.get("privileged"):
            yield f"container {one['name']} can gain privileges"
        if given.get("capabilities") != {"drop": ["ALL"]}:
            yield f"container {one['name']} does not drop ALL capabilities, or adds some"
        if pod.spec.get("securityContext", {}).get("seccompProfile") != {"type": "RuntimeDefault"}:
            yield "a pod's seccompProfile is not RuntimeDefault"


@policy
def bounded(documents: list[Document]) -> Iterator[str]:
    """CPU and memory are asked for and limited; what is on a disk or in memory has a size."""
    for pod, one in containers(documents):
        for side in ("requests", "limits"):
            missing = {"cpu", "memory"} - set(one.get("resources", {}).get(side, {}))
            if missing:
                yield f"container {one['name']} has no {side} of {', '.join(sorted(missing))}"
        for volume in pod.spec.get("volumes", []):
            if "emptyDir" in volume and not (volume["emptyDir"] or {}).get("sizeLimit"):
                yield f"the volume {volume['name']} has no sizeLimit"


@policy
def pinned_images(documents: list[Document]) -> Iterator[str]:
    """A tag or a digest, and never latest."""
    for _, one in containers(documents):
        name = one.get("image", "").rsplit("/", 1)[-1]
        if not re.search(r"[:@].", name) or name.endswith(":latest"):
            yield f"the image {one.get('image')!r} has no tag of its own"


@policy
def probes(documents: list[Document]) -> Iterator[str]:
    """What stays up says when it has started, is ready and lives."""
    for pod, one in containers(documents):
        if pod.owner["kind"] == "Deployment":
            for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
                if kind not in one:
                    yield f"container {one['name']} has no {kind}"


@policy
def no_cluster_rights(documents: list[Document]) -> Iterator[str]:
    """No role and no account is made; no token but by an account that is named; no links."""
    for document in documents:
        if re.search("Role|ServiceAccount|Webhook|CustomResourceDefinition", document["kind"]):
            yield f"the chart makes a {document['kind']}"
    for pod in pods(documents):
        if pod.spec.get("enableServiceLinks") is not False:
            yield "a pod's enableServiceLinks is not false"
        token = pod.spec.get("automountServiceAccountToken")
        if token is not False and not (token and pod.spec.get("serviceAccountName")):
            yield "a pod has the token of an account that is not named"


@policy
def nothing_of_the_node(documents: list[Document]) -> Iterator[str]:
    """No network, processes, ports or folders of the node."""
    for pod in pods(documents):
        for key in ("hostNetwork", "hostPID", "hostIPC"):
            if pod.spec.get(key):
                yield f"a pod has {key}"
        for volume in pod.spec.get("volumes", []):
            if set(volume) - {"name"} - VOLUMES:
                yield f"the volume {volume['name']} is a {', '.join(set(volume) - {'name'})}"
        for one in pod.containers():
            if any("hostPort" in port for port in one.get("ports", [])):
                yield f"container {one['name']} has a hostPort"


@policy
def goes_with_the_release(documents: list[Document]) -> Iterator[str]:
    """In one namespace; nothing kept, so that uninstalling removes it; no hook but a test's."""
    spaces = {document["metadata"].get("namespace") for document in documents}
    if len(spaces) > 1:
        yield f"the objects are in the namespaces {sorted(map(str, spaces))}"
    for document in documents:
        if document["kind"] not in NAMESPACED:
            yield f"the chart makes a {document['kind']}"
    for document in documents:
        held = document["metadata"].get("annotations", {})
        own = {key: value for key, value in held.items() if key.startswith("helm.sh/")}
        if own not in ({}, TEST_HOOK):
            yield f"{document['kind']} has the annotations {own}"


def without_tests(documents: list[Document]) -> list[Document]:
    """What a release makes: all but what `helm test` makes later."""

    def is_test(document: Document) -> bool:
        return "helm.sh/hook" in document["metadata"].get("annotations", {})

    return [document for document in documents if not is_test(document)]


@policy
def labelled(documents: list[Document]) -> Iterator[str]:
    """The usual labels, on objects and pods; none of their values longer than it may be."""
    held = [(one["kind"], one["metadata"].get("labels", {})) for one in documents]
    held += [(f"a pod of {pod.owner['kind']}", pod.labels) for pod in pods(documents)]
    for who, labels in held:
        if OWN_LABELS - set(labels):
            yield f"{who} lacks the labels {sorted(OWN_LABELS - set(labels))}"
        for key, value in labels.items():
            if not re.fullmatch(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?", str(value)):
                yield f"{who} has the label {key}={value!r}"


@policy
def no_nulls(documents: list[Document]) -> Iterator[str]:
    """No key without a value: a template's `with` was forgotten."""

    def empty(held: Any, path: str) -> Iterator[str]:
        if held is None:
            yield f"{path} is null"
        listed = dict(enumerate(held)) if isinstance(held, list) else held
        for key, below in listed.items() if isinstance(listed, dict) else ():
            yield from empty(below, f"{path}.{key}")

    for document in documents:
        yield from empty(document, document["kind"])
