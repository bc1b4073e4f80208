"""RayService of KubeRay: the servers in its serveConfigV2, which Ray Serve LLM starts with vLLM."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

from ...catalog.machines import named_by
from ...runfile.text.yaml_text import parse_yaml
from ..reading.card import NamedCard, all_of
from .containers import Container, gpus_of, inside, objects, section
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
    groups = objects(inside(spec, "rayClusterConfig", "workerGroupSpecs"))
    worker = section(groups[0] if groups else None, "template", "spec")
    containers = objects(worker.get("containers"))
    each, given_by = gpus_of(containers[0].get("resources"), name) if containers else (None, "")
    for entry in _entries(config):
        kwargs = section(entry, "engine_kwargs")
        sizes = (kwargs.get(f"{axis}_parallel_size", 1) for axis in ("tensor", "pipeline"))
        total = prod(size for size in sizes if isinstance(size, int) and size > 0)
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
    for one in objects(inside(config, "applications"))[:MOST_SERVERS]:
        entries = objects(inside(one, "args", "llm_configs"))[:MOST_SERVERS]
        yield from (entry for entry in entries if _model(entry))


def _model(entry: Mapping[str, Any]) -> str:
    """The model that is loaded: its source, else the name that it is served under."""
    loading = section(entry, "model_loading_config")
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


def _card(entry: Mapping[str, Any], worker: Mapping[str, Any]) -> NamedCard | None:
    """The card of accelerator_type, and of the worker's node."""
    kind = entry.get("accelerator_type")
    said = f"accelerator_type={kind}"
    own = NamedCard(name=named_by(LABEL, str(kind)), said=said) if kind else None
    return all_of([one for one in (own, pod_card(worker)) if one is not None])
