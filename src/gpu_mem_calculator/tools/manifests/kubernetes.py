"""The containers in Kubernetes objects: Pods, what makes Pods, and KServe's InferenceService; with
their words, variables and GPUs, and the card of their node: by the labels that it must have
(nodeSelector and the required terms of nodeAffinity; what is only preferred names no card), and by
MIG resources. RayService of KubeRay: the servers in its serveConfigV2.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any

from msgspec.structs import replace

from ...catalog.machines import label_cards, labels, machine, memory_size
from ...runfile.text.errors import InputError, quoted
from ...runfile.text.yaml_text import parse_yaml
from ..rayserve.models import engine_arguments, engine_options, model_card, model_name, models
from ..reading.card import NamedCard, all_of, one_of, slice_of
from ..translation.arguments import tables
from .containers import (
    Container,
    claims,
    container_words,
    gpus_of,
    inside,
    is_open,
    is_shared,
    memory_limit,
    objects,
    referenced,
    section,
    split_words,
    text_list,
    variables,
    whole_number,
)

RAY_SERVICE = "RayService"


def ray_containers(name: str, spec: Mapping[str, Any]) -> Iterator[Container]:
    """A server for each entry of `llm_configs`, on the GPUs of the worker group."""
    try:
        config = parse_yaml(str(spec.get("serveConfigV2") or ""))
    except (ValueError, RecursionError):
        return
    groups = objects(inside(spec, "rayClusterConfig", "workerGroupSpecs"))
    worker = section(groups[0] if groups else None, "template", "spec")
    containers = objects(worker.get("containers"))
    each, given_by = gpus_of(containers[0].get("resources"), name) if containers else (None, "")
    for entry in filter(model_name, models(config)):
        kwargs, own = engine_arguments(entry), model_card(entry)
        sizes = (kwargs.get(f"{axis}_parallel_size", 1) for axis in ("tensor", "pipeline"))
        total = prod(size for size in sizes if isinstance(size, int) and size > 0)
        nodes = -(-total // each) if each else 1
        yield Container(
            name=f"{name}, {model_name(entry)}",
            words=("vllm", "serve", model_name(entry), *engine_options(entry)),
            num_gpus=-(-total // nodes),
            given_by=given_by or "engine_kwargs",
            copies=nodes,
            card=all_of([one for one in (own, pod_card(worker)) if one is not None]),
            memory=memory_limit(containers[0].get("resources")) if containers else None,
        )


TABLES = tables(__file__)
WORKSPACE = "Workspace"  # of KAITO
SERVED, SERVED_LLM = "InferenceService", "LLMInferenceService"  # of KServe
# Options of KServe's huggingfaceserver itself; the others are those of vllm serve.
# KServe python/huggingfaceserver/huggingfaceserver/__main__.py
OWN_OPTIONS = tuple(TABLES["own_options"])
MODEL_ID, REVISION = "model_id", "model_revision"
# Variables that a LeaderWorkerSet sets in its leader.
GROUP, GROUP_SIZE = "LeaderWorkerSet", "LWS_GROUP_SIZE"
LEADER = {"LWS_WORKER_INDEX": "0", "LWS_LEADER_ADDRESS": "localhost"}
# parallelism of an LLMInferenceService, and the options of vllm serve that it becomes.
SIZES: dict[str, str] = TABLES["sizes"]
MORE_ARGS = "VLLM_ADDITIONAL_ARGS"


def in_pod(found: list[Container], pod: Mapping[str, Any], slot: str) -> Iterator[Container]:
    """The containers of a Pod with its card, and with the GPUs that each has for itself."""
    card, next_gpu = pod_card(pod), 0
    for one in found:
        devices = one.devices
        if one.num_gpus and not devices:
            devices = tuple(str(next_gpu + i) for i in range(one.num_gpus))
            next_gpu += one.num_gpus
        own = slice_of(one.profile, card) if one.profile else card
        yield replace(one, card=own, slots=(slot,), devices=devices)


def init_containers(
    name: str, pod: Mapping[str, Any], copies: int
) -> tuple[list[Container], list[Container]]:
    """The containers that end before the others start, and those that go on beside them."""
    data = objects(pod.get("initContainers"))
    found = [(pod_container(name, one, copies), one) for one in data]
    kept = [(one, data.get("restartPolicy") == "Always") for one, data in found if one.has_gpus]
    return [one for one, stays in kept if not stays], [one for one, stays in kept if stays]


def with_containers(value: Any) -> Iterator[Mapping[str, Any]]:
    """Every part of an object that has containers, at any depth."""
    if isinstance(value, Mapping):
        if "containers" in value:
            yield value
            return
        for inner in value.values():
            yield from with_containers(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from with_containers(inner)


def pod_container(
    name: str, data: Mapping[str, Any], copies: int, more: Mapping[str, str] | None = None
) -> Container:
    """A container of a Pod; `more` are variables that its controller sets."""
    where = f"{name}, container {data.get('name', '')}".rstrip()
    environment = {**(more or {}), **variables(data.get("env"), f"{where}: env")}
    command = text_list(data.get("command"), f"{where}: command")
    args = text_list(data.get("args"), f"{where}: args")
    image = str(data.get("image") or "")
    command, args = ([referenced(word, environment) for word in words] for words in (command, args))
    resources = data.get("resources")
    gpus, given_by = gpus_of(resources, where)
    return Container(
        name=where,
        image=image,
        words=container_words(image, command, args),
        environment=environment,
        num_gpus=gpus,
        given_by=given_by,
        copies=copies,
        profile=resource_slice(resources),
        memory=memory_limit(resources),
        devices=claims(resources) or (("0",) if is_shared(resources) else ()),
    )


def object_containers(document: Mapping[str, Any]) -> Iterator[Container]:
    """The containers of one object; none where it starts nothing."""
    kind = str(document.get("kind"))
    title = inside(document, "metadata", "name") or ""
    name, spec = f"{kind} {title}".strip(), document.get("spec")
    if kind == "List":
        for item in objects(document.get("items")):
            yield from object_containers(item)
    elif kind == WORKSPACE:
        yield from _workspace(name, document)
    elif isinstance(spec, Mapping):
        yield from _spec_containers(name, kind, spec)


def _spec_containers(name: str, kind: str, spec: Mapping[str, Any]) -> Iterator[Container]:
    """The containers of an object with a specification."""
    served = list(ray_containers(name, spec)) if kind == RAY_SERVICE else []
    if served:
        yield from served
        return
    if kind == SERVED:
        yield from _served(name, spec)
    elif kind == SERVED_LLM:
        yield from _served_llm(name, spec)
        return
    for number, (pod, copies) in enumerate(_pods(kind, spec)):
        containers = pod.get("containers")
        if not isinstance(containers, list):
            raise InputError(f"{name}: containers={quoted(containers)} must be a list")
        more = {GROUP_SIZE: str(copies), **LEADER} if kind == GROUP else {}
        slot = f"{name} {number}" if number else name
        first, beside = init_containers(name, pod, copies)
        found = [pod_container(name, one, copies, more) for one in objects(containers)]
        for one in first:
            yield from in_pod([one], pod, f"{slot}, before {one.name}")
        yield from in_pod([*beside, *found], pod, slot)


def _workspace(name: str, document: Mapping[str, Any]) -> Iterator[Container]:
    """The containers of a KAITO workspace with a template; its machine type says the card."""
    kind = inside(document, "resource", "instanceType")
    known = machine(str(kind)) if kind else None
    said = f"instanceType={kind}"
    card = NamedCard(name=known[0] if known else "", said=said) if kind else None
    for pod in with_containers(document.get("inference")):
        found = [pod_container(name, one, 1) for one in objects(pod["containers"])]
        for one in in_pod(found, pod, name):
            yield replace(one, card=one.card or card)


def _pods(kind: str, spec: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], int]]:
    """The Pods that an object makes, and how many nodes each run of them has."""
    if kind == GROUP:
        groups = section(spec, "leaderWorkerTemplate")
        size = whole_number(groups.get("size", 1), "leaderWorkerTemplate.size")
        template = groups.get("leaderTemplate") or groups.get("workerTemplate")
        yield from ((pod, size) for pod in with_containers(template))
        return
    if kind == "ModelServing":  # of kthena: the roles of a group of Pods
        for role in objects(inside(spec, "template", "roles")):
            nodes = 1 + whole_number(role.get("workerReplicas", 0), "workerReplicas")
            yield from ((pod, nodes) for pod in with_containers(role.get("entryTemplate")))
        return
    replicas = [value for key, value in spec.items() if str(key).endswith("ReplicaSpecs")]
    if replicas and isinstance(replicas[0], Mapping):  # PyTorchJob, MPIJob ...
        roles = [role for role in replicas[0].values() if isinstance(role, Mapping)]
        counts = [role.get("replicas", 1) for role in roles]
        nodes = sum(1 if is_open(one) else whole_number(one, "replicas") for one in counts)
        for role in roles[:1]:
            yield from ((pod, nodes) for pod in with_containers(role))
        return
    yield from ((pod, 1) for pod in with_containers(spec))


def _served(name: str, spec: Mapping[str, Any]) -> Iterator[Container]:
    """The model server of KServe: huggingfaceserver runs vLLM with the same options."""
    predictor, model = section(spec, "predictor"), inside(spec, "predictor", "model")
    if not isinstance(model, Mapping):
        return
    where = f"{name}: predictor.model"
    environment = variables(model.get("env"), f"{where}.env")
    args = [referenced(one, environment) for one in text_list(model.get("args"), f"{where}.args")]
    command = text_list(model.get("command"), f"{where}.command")
    form = model.get("modelFormat")
    title = str((form.get("name") if isinstance(form, Mapping) else form) or "")
    worker = predictor.get("workerSpec")
    if command:
        words = container_words("", command, args)
    elif title.lower() in ("huggingface", "vllm") and "--backend=huggingface" not in args:
        words = _vllm_words(args, model.get("storageUri"), environment, worker)
    else:
        words = ()
    resources = model.get("resources")
    gpus, given_by = gpus_of(resources, where)
    container = Container(
        name=name,
        image=f"{title} of KServe",
        words=words,
        environment=environment,
        num_gpus=gpus,
        given_by=given_by,
        copies=_nodes(worker),
        profile=resource_slice(resources),
        memory=memory_limit(resources),
    )
    yield from in_pod([container], predictor, name)


def _nodes(worker: Any) -> int:
    """The nodes of a server with workers: one for each stage (KServe's workerSpec)."""
    stages = section(worker).get("pipelineParallelSize", 1)
    return max(whole_number(stages, "workerSpec.pipelineParallelSize"), 1)


def _vllm_words(
    args: list[str], address: Any, environment: Mapping[str, str], worker: Any
) -> tuple[str, ...]:
    """The words of `vllm serve` for the options of huggingfaceserver."""
    model, rest = environment.get("MODEL_ID", ""), []
    index = 0
    while index < len(args):
        name, sign, value = args[index].partition("=")
        key = name.lstrip("-").replace("-", "_")
        index += 1
        has_value = not sign and index < len(args) and not args[index].startswith("-")
        if key in (MODEL_ID, REVISION, *OWN_OPTIONS) and name.startswith("--"):
            value = args[index] if has_value else value
            index += has_value
            model = value if key == MODEL_ID else model
            rest += [f"--revision={value}"] if key == REVISION else []
        else:
            rest.append(args[index - 1])
    if isinstance(address, str) and address and not model:
        model = address.removeprefix("hf://")
    for key, option in (("tensorParallelSize", "tensor"), ("pipelineParallelSize", "pipeline")):
        if inside(worker, key) is not None:
            rest.append(f"--{option}-parallel-size={worker[key]}")
    return ("vllm", "serve", *([model] if model else []), *rest)


def _served_llm(name: str, spec: Mapping[str, Any]) -> Iterator[Container]:
    """The servers of an LLMInferenceService: KServe's own template starts vllm serve in them."""
    for part, own in ((name, spec), (f"{name}, prefill", section(spec, "prefill"))):
        for pod in with_containers(own.get("template")):
            for data in objects(pod["containers"]):
                if data.get("name") == "main":
                    sizes = section(own, "parallelism")
                    container = _llm_container(part, data, section(spec, "model"), sizes)
                    yield from in_pod([container], pod, part)


def _llm_container(
    name: str, data: Mapping[str, Any], model: Mapping[str, Any], sizes: Mapping[str, Any]
) -> Container:
    """The container `main`; without a command, vllm serve with the model and its parallel sizes."""
    container = pod_container(name, {**data, "image": ""}, 1)
    if not data.get("command"):
        address = str(model.get("uri") or "")
        named = address.removeprefix("hf://") if address.startswith("hf://") else model.get("name")
        words = ["vllm", "serve", str(named or address)]
        words += [f"--{SIZES[key]}={sizes[key]}" for key in SIZES if sizes.get(key) is not None]
        words += ["--enable-expert-parallel"] if sizes.get("expert") is True else []
        words += text_list(data.get("args"), f"{name}: args")
        words += split_words(container.environment.get(MORE_ARGS, ""), f"{name}: {MORE_ARGS}")
        rest = {name: text for name, text in container.environment.items() if name != MORE_ARGS}
        container = replace(container, words=tuple(words), environment=rest)
    total, local = sizes.get("data"), sizes.get("dataLocal")
    nodes = total // local if isinstance(total, int) and isinstance(local, int) and local else 1
    return replace(container, copies=max(nodes, 1))


SLICE = re.compile(r"(?:nvidia\.com/)?(?:mig-)?(\d+g\.\d+gb)(?:[.+]me)?(?:\.shared)?")
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
EQUAL, MORE = ("In", "Exists", ""), ("Gt", "Gte")


def pod_card(pod: Mapping[str, Any]) -> NamedCard | None:
    """The card of a Pod's node, with its slice where a label says it; None where nothing does."""
    selector = section(pod, "nodeSelector")
    labelled = (_label(str(key), "", [str(value)]) for key, value in selector.items())
    said = [card for card in labelled if card]
    affinity = inside(pod, "affinity", "nodeAffinity", REQUIRED, "nodeSelectorTerms")
    terms = [all_of(list(_term(one))) for one in affinity] if isinstance(affinity, list) else []
    known = [one for one in terms if one is not None]
    either = one_of(known) if known and len(known) == len(terms) else None
    card = all_of([*said, *([either] if either else [])])
    profile = _slice_label(selector)
    return slice_of(profile, card) if profile else card


def _term(term: Any) -> Iterator[NamedCard]:
    """The cards of one term: each of its expressions has to hold."""
    for one in objects(inside(term, "matchExpressions")):
        if isinstance(one.get("values"), list):
            values = [str(value) for value in one["values"]]
            card = _label(str(one.get("key")), str(one.get("operator", "")), values)
            if card:
                yield card


def _label(key: str, operator: str, values: Sequence[str]) -> NamedCard | None:
    """What one label says of the card; None where it says nothing."""
    said = f"{key}{'=' if operator in EQUAL else f' {operator} '}{'|'.join(values)}"
    row = labels().get(key)
    if row is not None and row["says"] == "memory":
        return _memory(operator, values, said)
    if operator not in EQUAL or not values:
        return None
    cards = []
    for value in values:
        name = label_cards(key, value)
        if name is None:
            return None
        known = machine(value) if row is not None and row["says"] == "machine" else None
        cards.append(NamedCard(name=name, gpus=known[1] if known else None, said=said))
    return one_of(cards)


def _memory(operator: str, values: Sequence[str], said: str) -> NamedCard | None:
    """A label that says a size in MiB: one of several, or more than one."""
    sizes = [int(value) for value in values if value.isdecimal() and len(value) < 9]
    if not sizes or operator not in (*EQUAL, *MORE):
        return None
    more = operator in MORE
    found = memory_size(min(sizes), more=more)
    return NamedCard(memory_gb=found, at_least=more or len(sizes) > 1, said=said)


def _slice_label(selector: Mapping[str, Any]) -> str:
    """The MIG profile in a label of the selector; empty where there is none."""
    for key, value in selector.items():
        row = labels().get(str(key))
        found = SLICE.fullmatch(str(value)) if row and row["says"] == "slice" else None
        if found:
            return found[1]
    return ""


def resource_slice(resources: Any) -> str:
    """The MIG profile among a container's resources; empty where there is none."""
    for part in ("limits", "requests"):
        for name in section(resources, part):
            found = SLICE.fullmatch(str(name)) if "mig-" in str(name) else None
            if found:
                return found[1]
    return ""
