"""Reads applications of Ray Serve that `ray.serve.llm:build_openai_app` makes (ray 2.x
llm/_internal/serve/configs/server_models.py LLMConfig): one vLLM for each model, with its own
options in `engine_kwargs`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ...runfile.text.errors import InputError, quoted
from ..reading.card import card_of
from ..reading.command import Command
from ..reading.named_files import NamedFiles
from ..reading.reading import Reading
from ..reading.server_options import config_words
from ..reading.tools import with_card
from ..vllm.read import SYNTAX, read_arguments

BUILDS = ("build_openai_app", "build_llm_deployment")
FILES = (".yaml", ".yml", ".json")
MODELS, LOADING, ENGINE = "llm_configs", "model_loading_config", "engine_kwargs"
ACCELERATOR = "accelerator_type"


def read_command(command: Command) -> Reading:
    """`serve run FILE` or `serve deploy FILE`."""
    names = [word for word in command.words[2:] if word.endswith(FILES)]
    if not names:
        asked = " ".join(command.words[:3])
        raise InputError(f"{asked} names no file; write its arguments into one, and name that")
    data = command.files.data(names[0], "serve run")
    if not isinstance(data, Mapping):
        raise InputError(f"{names[0]}: a file of Ray Serve has applications")
    return _read(data, command.files, command)


def read_data(data: Mapping[str, Any], files: NamedFiles) -> Reading:
    """A file of applications, the arguments of one, or one model."""
    return _read(data, files, Command(words=(), files=files))


def _read(data: Mapping[str, Any], files: NamedFiles, command: Command) -> Reading:
    models = [*_models(data, files)]
    if len(models) != 1:
        names = ", ".join(_name(one) for one in models) or "none"
        raise InputError(f"it has {len(models)} models of Ray Serve ({names}); give a file of one")
    [model] = models
    loading = model.get(LOADING) or {}
    engine = {str(k): v for k, v in (model.get(ENGINE) or {}).items()}
    words = [_source(loading, model), *config_words(engine, SYNTAX)]
    reading = read_arguments(words, command)
    asked = model.get(ACCELERATOR)
    if asked:
        card = card_of(str(asked), f"{ACCELERATOR}: {asked}")
        reading = with_card(reading, Command(words=("serve",), files=files, card=card))
    most = ((model.get("deployment_config") or {}).get("autoscaling_config") or {}).get(
        "max_replicas", 1
    )
    if isinstance(most, int) and most > 1:
        reading.assumed.append(f"one of up to {most} replicas, each with GPUs of its own")
    return reading


def _models(data: Mapping[str, Any], files: NamedFiles) -> Iterator[Mapping[str, Any]]:
    """The LLMConfig of each model; one may be the path of a file."""
    if LOADING in data:
        yield data
    for one in data.get(MODELS) or ():
        found = files.data(one, MODELS) if isinstance(one, str) else one
        if not isinstance(found, Mapping):
            raise InputError(f"{MODELS}: {quoted(one)} must be an object or a file")
        yield found
    for application in data.get("applications") or ():
        if isinstance(application, Mapping) and isinstance(application.get("args"), Mapping):
            target = str(application.get("import_path", ""))
            if not target.endswith(BUILDS) and MODELS not in application["args"]:
                continue
            yield from _models(application["args"], files)


def _name(model: Mapping[str, Any]) -> str:
    return str((model.get(LOADING) or {}).get("model_id", "a model"))


def _source(loading: Mapping[str, Any], model: Mapping[str, Any]) -> str:
    """Where the weights are: model_source, which may be a bucket's mirror, else the name."""
    source = loading.get("model_source")
    if isinstance(source, Mapping):
        source = source.get("bucket_uri")
    name = source or loading.get("model_id")
    if not isinstance(name, str):
        raise InputError(f"{LOADING}={quoted(dict(loading))} names no model; add model_id")
    return name
