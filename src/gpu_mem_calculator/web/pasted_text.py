"""Pasted text: a run file, a config.json, DeepSpeed's JSON, or a model's name or page."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from .. import catalog
from ..core.errors import InputError
from ..core.runfile import SECTIONS, read
from ..core.text_data import parse_any_text
from ..formats.deepspeed.detect import is_deepspeed
from ..formats.deepspeed.read import sections
from ..hub.bounds import HubError
from ..hub.names import hub_name, page

WHERE = "what was pasted"
KINDS = "a run file, a config.json, DeepSpeed's JSON, or a model's name"
NAME = re.compile(r"[^\s{}\[\]:=,]+|https?://\S+")  # one word, or an address
COMMANDS = ("vllm", "accelerate", "torchrun", "deepspeed", "python", "python3", "trl", "axolotl")
# Other programs' files, by a key that only they have.
FOREIGN = {
    "base_model": "an Axolotl file",
    "compute_environment": "an accelerate file",
    "distributed_type": "an accelerate file",
    "per_device_train_batch_size": "a file of TrainingArguments",
    "model_name_or_path": "a file of TRL or TrainingArguments",
}


def read_pasted(text: str) -> dict[str, Any]:
    """The run file, or the sections of one, that a text means, and which kind the text was."""
    word = text.strip()
    if NAME.fullmatch(word):
        return {"run": {"model": {"name": _model_name(word)}}, "what": "model"}
    if word.split(" ")[0] in COMMANDS:
        raise InputError("a command line is not read here; paste the file that it names")
    data = parse_any_text(text, WHERE)
    if not isinstance(data, Mapping) or not data:
        raise InputError(f"{WHERE} is not {KINDS}")
    if data.keys() <= SECTIONS.keys():
        read(data)
        return {"run": data, "what": "run file"}
    if "model_type" in data or "architectures" in data:
        return {"run": {"model": {"config": data}}, "what": "config.json"}
    if is_deepspeed(data):
        return {"run": _deepspeed(data), "what": "DeepSpeed"}
    raise InputError(_foreign(data))


def _model_name(word: str) -> str:
    """The name of a model: a preset, `owner/model`, or the hub's page of it."""
    if "://" in word or word.startswith(("huggingface.co/", "hf.co/")):
        address = word if "://" in word else f"https://{word}"
        try:
            name = page(address.replace("http://", "https://", 1))
        except HubError as error:
            raise InputError(f"{word[:200]!r} is not a model: {error}") from None
        if name is None:
            raise InputError(f"{word[:200]!r} is not a model's page on huggingface.co")
        return name
    if catalog.find("index", word) is None and hub_name(word) is None:
        raise InputError(f"{word[:80]!r} is not the name of a model; give it as owner/model")
    return word


def _deepspeed(data: Mapping[str, Any]) -> dict[str, Any]:
    """The sections of DeepSpeed's JSON; without the number of GPUs where it leaves that open."""
    found = sections(data, num_gpus=None, model_ranks=1)
    run: dict[str, Any] = {"training": found["training"], "engine": found["engine"]}
    if found["hardware"]["num_gpus"] > 1:
        run["hardware"] = found["hardware"]
    return run


def _foreign(data: Mapping[str, Any]) -> str:
    """The sentence for an object that is none of the kinds."""
    key = next((key for key in FOREIGN if key in data), None)
    if key is not None:
        return f"this is {FOREIGN[key]} (it has {key!r}), which is not read here; paste {KINDS}"
    unknown = next(key for key in data if key not in SECTIONS)
    return f"{unknown!r} is not a section of a run file, and {WHERE} is not {KINDS}"
