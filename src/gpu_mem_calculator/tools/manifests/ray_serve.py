"""RayService of KubeRay: the servers in its serveConfigV2, which Ray Serve LLM starts with vLLM."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from ...catalog.machines import named_by
from ...runfile.text.yaml_text import parse_yaml
from ..reading.card import NamedCard, all_of
from .containers import Container, gpus_of
from .node_cards import pod_card

RAY_SERVICE = "RayService"
LABEL = "ray accelerator_type"
MOST_SERVERS = 20


def ray_containers(name: str, spec: Mapping[str, Any]) -> Iterator[Container]:
    """A server for each entry of `llm_configs`, on the GPUs of the worker group."""
    try:
        config = parse_yaml(str(spec.get("serveConfigV2") or ""))
    except (ValueError, RecursionError):
        return
    worker = _worker(spec)
    for entry in _entries(config):
        kwargs = entry.get("engine_kwargs")
        kwargs = kwargs if isinstance(kwargs, Mapping) else {}
        each, given_by = _gpus(worker, name)
        sizes = (kwargs.get(f"{axis}_parallel_size", 1) for axis in ("tensor", "pipeline"))
        total = 1
        for size in sizes:
            total *= size if isinstance(size, int) and size > 0 else 1
        nodes = -(-total // each) if each else 1
        yield Container(
            name=f"{name}, {_model(entry)}",
            words=("vllm", "serve", _model(entry), *_options(kwargs)),
            num_gpus=-(-total // nodes),
            given_by=given_by or "engine_kwargs",
            copies=nodes,
            card=_card(entry, worker),
        )


def _entries(config: Any) -> Iterator[Mapping[str, Any]]:
    """The entries of llm_configs in every application."""
    applications = config.get("applications") if isinstance(config, Mapping) else None
    for one in applications[:MOST_SERVERS] if isinstance(applications, list) else ():
        args = one.get("args") if isinstance(one, Mapping) else None
        entries = args.get("llm_configs") if isinstance(args, Mapping) else None
        for entry in entries[:MOST_SERVERS] if isinstance(entries, list) else ():
            if isinstance(entry, Mapping) and _model(entry):
                yield entry


def _model(entry: Mapping[str, Any]) -> str:
    """The model that is loaded: its source, else the name that it is served under."""
    loading = entry.get("model_loading_config")
    loading = loading if isinstance(loading, Mapping) else {}
    source = loading.get("model_source")
    return str(source if isinstance(source, str) else loading.get("model_id") or "")


def _options(kwargs: Mapping[str, Any]) -> Iterator[str]:
    """The options of vllm serve for arguments of its engine."""
    for key, value in kwargs.items():
        option = str(key).replace("_", "-")
        if isinstance(value, bool):
            yield f"--{option}" if value else f"--no-{option}"
        elif value is not None:
            whole = isinstance(value, Mapping | list)
            yield f"--{option}={json.dumps(value) if whole else value}"


def _worker(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """The Pod of the first worker group; empty where there is none."""
    value: Any = spec.get("rayClusterConfig")
    groups = value.get("workerGroupSpecs") if isinstance(value, Mapping) else None
    value = groups[0] if isinstance(groups, list) and groups else None
    for key in ("template", "spec"):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value if isinstance(value, Mapping) else {}


def _gpus(worker: Mapping[str, Any], name: str) -> tuple[int | None, str]:
    """The GPUs of a worker Pod."""
    containers = worker.get("containers")
    for one in containers if isinstance(containers, list) else ():
        if isinstance(one, Mapping):
            return gpus_of(one.get("resources"), name)
    return None, ""


def _card(entry: Mapping[str, Any], worker: Mapping[str, Any]) -> NamedCard | None:
    """The card of accelerator_type, and of the worker's node."""
    kind = entry.get("accelerator_type")
    said = f"accelerator_type={kind}"
    own = NamedCard(name=named_by(LABEL, str(kind)), said=said) if kind else None
    return all_of([one for one in (own, pod_card(worker)) if one is not None])
