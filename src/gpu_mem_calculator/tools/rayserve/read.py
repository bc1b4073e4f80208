"""Reads applications of Ray Serve that `ray.serve.llm:build_openai_app` makes: `serve run FILE`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from ...runfile.text.errors import InputError
from ..reading.command import Command
from ..reading.named_files import NamedFiles
from ..reading.reading import Reading
from ..reading.tools import with_card
from ..vllm.read import read_arguments
from .models import engine_options, model_card, model_name, models, most_replicas

FILES = (".yaml", ".yml", ".json")


def read_command(command: Command) -> Reading:
    """`serve run FILE` or `serve deploy FILE`."""
    names = [word for word in command.words[2:] if word.endswith(FILES)]
    if not names:
        asked = " ".join(command.words[:3])
        raise InputError(f"{asked} names no file; write its arguments into one, and name that")
    return _read(command.files.data(names[0], "serve run"), command)


def read_data(data: Mapping[str, Any], files: NamedFiles) -> Reading:
    """A file of applications, the arguments of one, or one model."""
    return _read(data, Command(words=(), files=files))


def _read(data: Any, command: Command) -> Reading:
    found = [*models(data, command.files)]
    if len(found) != 1:
        names = ", ".join(map(model_name, found)) or "none"
        raise InputError(f"it has {len(found)} models of Ray Serve ({names}); give a file of one")
    [model] = found
    if not model_name(model):
        raise InputError("model_loading_config names no model; add model_id")
    reading = read_arguments([model_name(model), *engine_options(model)], command)
    card = model_card(model)
    if card is not None:
        reading = with_card(reading, replace(command, words=("serve",), card=card))
    most = most_replicas(model)
    if isinstance(most, int) and most > 1:
        reading.assumed.append(f"one of up to {most} replicas, each with GPUs of its own")
    return reading
