"""The models of Ray Serve's applications (ray 2.x llm/_internal/serve/configs/server_models.py
LLMConfig): each is a vLLM with the arguments of its engine. A file has them, or a RayService.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from ...catalog.machines import named_by
from ...runfile.text.errors import InputError, quoted
from ..reading.card import NamedCard
from ..reading.named_files import NamedFiles

MODELS, LOADING, ENGINE = "llm_configs", "model_loading_config", "engine_kwargs"
LABEL = "ray accelerator_type"
MOST_SERVERS = 20


def models(data: Any, files: NamedFiles | None = None) -> Iterator[Mapping[str, Any]]:
    """The models of every application; one may be the path of a file, where files are read."""
    if not isinstance(data, Mapping):
        return
    if LOADING in data:
        yield data
    for one in _listed(data, MODELS):
        found = files.data(one, MODELS) if isinstance(one, str) and files is not None else one
        if isinstance(found, Mapping):
            yield found
        elif files is not None:
            raise InputError(f"{MODELS}: {quoted(one)} must be an object or a file")
    for application in _listed(data, "applications"):
        if isinstance(application, Mapping):
            yield from models(application.get("args"), files)


def _listed(data: Mapping[str, Any], key: str) -> list[Any]:
    found = data.get(key)
    return found[:MOST_SERVERS] if isinstance(found, list) else []


def _section(model: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = model.get(name)
    return found if isinstance(found, Mapping) else {}


def model_name(model: Mapping[str, Any]) -> str:
    """What is loaded: its source, else the name that it is served under; empty for neither."""
    loading = _section(model, LOADING)
    source = loading.get("model_source")
    return str(source if isinstance(source, str) else loading.get("model_id") or "")


def engine_arguments(model: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arguments of its vLLM."""
    return _section(model, ENGINE)


def engine_options(model: Mapping[str, Any]) -> Iterator[str]:
    """The options of vllm serve for the arguments of its vLLM."""
    for key, value in engine_arguments(model).items():
        option = str(key).replace("_", "-")
        if isinstance(value, bool):
            yield f"--{option}" if value else f"--no-{option}"
        elif value is not None:
            whole = isinstance(value, Mapping | list)
            yield f"--{option}={json.dumps(value) if whole else value}"


def model_card(model: Mapping[str, Any]) -> NamedCard | None:
    """The card of accelerator_type."""
    kind = model.get("accelerator_type")
    said = f"accelerator_type={kind}"
    return NamedCard(name=named_by(LABEL, str(kind)), said=said) if kind else None


def most_replicas(model: Mapping[str, Any]) -> Any:
    """How many there can be."""
    scaling = _section(_section(model, "deployment_config"), "autoscaling_config")
    return scaling.get("max_replicas", 1)
