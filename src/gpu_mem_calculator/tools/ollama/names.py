"""Names of models in Ollama: `llama3.1:8b-instruct-q4_K_M`, `hf.co/OWNER/MODEL:TYPE`, a path."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from ...runfile.text.errors import InputError
from ..llamacpp.model_file import DEFAULT, FileName, read_model_name

HUBS = ("hf.co/", "huggingface.co/", "https://hf.co/", "https://huggingface.co/")


@cache
def _library() -> dict[str, Any]:
    return tomllib.loads((Path(__file__).parent / "library.toml").read_text(encoding="utf-8"))


def read_name(text: str) -> FileName:
    """The model and the quantization of a name, with the library's defaults."""
    for hub in HUBS:
        if text.lower().startswith(hub):
            return _of_hub(text[len(hub) :])
    name, _, tag = text.rpartition("/")[2].partition(":")
    if tag == "cloud" or tag.endswith("-cloud"):
        raise InputError(f"{text} runs in Ollama's cloud, and nothing is loaded here")
    library, key = _library(), name.lower()
    size = library["latest"].get(key, "") if tag in ("", "latest") else tag
    found = read_model_name(f"{name}-{size}" if size else name)
    model = library["models"].get(found.model.lower(), found.model)
    kind = found.quantization or library["quantization"].get(key, DEFAULT)
    return FileName(model, kind, found.similar)


def _of_hub(text: str) -> FileName:
    """A repository of GGUF files on the hub, with the type behind a colon."""
    repository, _, tag = text.partition(":")
    found = read_model_name(repository.rpartition("/")[2])
    kind = read_model_name(f"x-{tag}") if tag and tag != "latest" else found
    whole = FileName(found.model, kind.quantization or DEFAULT, kind.similar)
    return whole if whole.is_known else FileName(repository, whole.quantization, whole.similar)
