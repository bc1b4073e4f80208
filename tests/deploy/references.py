"""Policies of what points at what: selectors, services, config maps, secrets, volumes, ports."""

from __future__ import annotations

from collections.abc import Iterator

from .policies import Document, Pod, pods, policy

# A Job's pods get this label from Kubernetes itself.
JOB_NAME = "batch.kubernetes.io/job-name"


def _all_labels(pod: Pod) -> dict[str, str]:
    given = dict(pod.labels)
    return given | ({JOB_NAME: pod.owner["metadata"]["name"]} if pod.owner["kind"] == "Job" else {})


def _job_names(documents: list[Document]) -> set[str]:
    wrapped = [one["spec"].get("job", {}) for one in documents if one["kind"] == "KaiwoJob"]
    jobs = [one for one in documents if one["kind"] == "Job"] + [one for one in wrapped if one]
    return {one["metadata"]["name"] for one in jobs}


def _named(documents: list[Document], kind: str) -> dict[str, Document]:
    return {one["metadata"]["name"]: one for one in documents if one["kind"] == kind}


@policy
def selectors_match(documents: list[Document]) -> Iterator[str]:
    """Whatever selects pods selects all pods of one object, and each object its own."""
    for document in documents:
        spec = document.get("spec", {})
        chosen = spec.get("podSelector", spec.get("selector"))
        if chosen is None:
            continue
        wanted = chosen.get("matchLabels", chosen) if document["kind"] != "Service" else chosen
        if set(wanted) == {JOB_NAME}:
            if wanted[JOB_NAME] not in _job_names(documents):
                yield f"{document['kind']} selects the pods of no Job of ours"
            continue
        if not any(wanted.items() <= _all_labels(pod).items() for pod in pods(documents)):
            yield f"{document['kind']} selects {wanted}, which no pod has"
        if "app.kubernetes.io/instance" not in wanted:
            yield f"{document['kind']} selects pods of other releases, too"


@policy
def targets_are_there(documents: list[Document]) -> Iterator[str]:
    """An autoscaler's Deployment, an ingress' service and port, a service's and a policy's port."""
    services = _named(documents, "Service")
    for one in _named(documents, "HorizontalPodAutoscaler").values():
        target = one["spec"]["scaleTargetRef"]
        found = _named(documents, target["kind"]).get(target["name"])
        if found is None or found["apiVersion"] != target["apiVersion"]:
            yield f"the autoscaler scales {target['name']}, which is not there"
        elif "replicas" in found["spec"]:
            yield "an autoscaler and the chart both say how many replicas there are"
    for one in _named(documents, "Ingress").values():
        for path in (path for rule in one["spec"]["rules"] for path in rule["http"]["paths"]):
            to = path["backend"]["service"]
            ports = services.get(to["name"], {"spec": {"ports": []}})["spec"]["ports"]
            if to["port"] not in [{"name": p["name"]} for p in ports] + [
                {"number": p["port"]} for p in ports
            ]:
                yield f"the ingress points at {to}, which is not there"
    yield from _ports(documents, services)


def _ports(documents: list[Document], services: dict[str, Document]) -> Iterator[str]:
    open_ports = {
        value
        for pod in pods(documents)
        for one in pod.containers()
        for port in one.get("ports", [])
        for value in (port.get("name"), port["containerPort"])
    }
    for name, service in services.items():
        for port in service["spec"]["ports"]:
            if port.get("targetPort", port["port"]) not in open_ports:
                yield f"the service {name} sends to {port}, which no container has"
    for name, one in _named(documents, "NetworkPolicy").items():
        for port in (p for rule in one["spec"].get("ingress", []) for p in rule.get("ports", [])):
            if port["port"] not in open_ports:
                yield f"the network policy {name} lets in {port}, which no container has"
    for pod in pods(documents):
        for one in pod.containers():
            for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
                port = one.get(kind, {}).get("httpGet", {}).get("port")
                named = {p.get("name") for p in one.get("ports", [])}
                if isinstance(port, str) and port not in named:
                    yield f"{kind} asks at {port}, which the container does not have"


@policy
def names_resolve(documents: list[Document]) -> Iterator[str]:
    """Pods that call each other by name have the headless service that answers for them."""
    services = _named(documents, "Service")
    for pod in pods(documents):
        domain = pod.spec.get("subdomain")
        if domain is None:
            continue
        if services.get(domain, {"spec": {}})["spec"].get("clusterIP") != "None":
            yield f"the pods' subdomain {domain} is no headless service"
        for one in pod.containers():
            words = [*one.get("command", []), *one.get("args", [])]
            address = words[words.index("--master-addr") + 1] if "--master-addr" in words else ""
            jobs = {f"{name}-0.{domain}" for name in _job_names(documents)}
            if address and address not in jobs:
                yield f"{address} is the name of no pod"


@policy
def disruption_leaves_room(documents: list[Document]) -> Iterator[str]:
    """A budget that keeps every pod would keep every node, too."""
    scaled = [
        one["spec"]["minReplicas"] for one in _named(documents, "HorizontalPodAutoscaler").values()
    ]
    fixed = [one["spec"].get("replicas") for one in _named(documents, "Deployment").values()]
    for one in _named(documents, "PodDisruptionBudget").values():
        stay, least = one["spec"]["minAvailable"], (scaled or fixed)[0]
        if stay == "100%" or (isinstance(stay, int) and stay >= least):
            yield f"{stay} of {least} pods must stay: no node can be drained"


@policy
def volumes_are_there(documents: list[Document]) -> Iterator[str]:
    """Every mount has its volume and a path of its own; every volume is mounted; /tmp is one."""
    for pod in pods(documents):
        volumes = {volume["name"] for volume in pod.spec.get("volumes", [])}
        used: set[str] = set()
        for one in pod.containers():
            mounts = one.get("volumeMounts", [])
            paths = [mount["mountPath"] for mount in mounts]
            used |= {mount["name"] for mount in mounts}
            if len(paths) != len(set(paths)):
                yield f"container {one['name']} mounts two volumes at one path"
            if "/tmp" not in paths or one.get("workingDir") != "/tmp":
                yield f"container {one['name']} does not work in a volume at /tmp"
            names = [variable["name"] for variable in one.get("env", [])]
            if len(names) != len(set(names)) or "HOME" not in names:
                yield f"container {one['name']} has a variable twice, or no HOME"
        if used != volumes:
            yield f"volumes and mounts differ: {sorted(used ^ volumes)}"


def outside(documents: list[Document]) -> set[tuple[str, str]]:
    """Config maps, secrets and claims that pods need and the chart does not make."""
    needed: set[tuple[str, str]] = set()
    for pod in pods(documents):
        for one in pod.containers():
            for variable in one.get("env", []):
                source = variable.get("valueFrom", {})
                if "secretKeyRef" in source:
                    needed.add(("Secret", source["secretKeyRef"]["name"]))
                if "configMapKeyRef" in source:
                    needed.add(("ConfigMap", source["configMapKeyRef"]["name"]))
        for volume in pod.spec.get("volumes", []):
            if "configMap" in volume:
                needed.add(("ConfigMap", volume["configMap"]["name"]))
            if "secret" in volume:
                needed.add(("Secret", volume["secret"]["secretName"]))
            if "persistentVolumeClaim" in volume:
                needed.add(("PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"]))
        needed |= {("Secret", one["name"]) for one in pod.spec.get("imagePullSecrets", [])}
    return needed - {(one["kind"], one["metadata"]["name"]) for one in documents}
