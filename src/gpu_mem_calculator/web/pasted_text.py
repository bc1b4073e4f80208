"""Pasted text: a run file, a config.json, a command, another tool's file, a model's name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from .. import catalog
from ..catalog.hub.bounds import HubError
from ..catalog.hub.names import hub_name, page
from ..runfile.file_kinds import is_model_config
from ..runfile.program import Translation
from ..runfile.read import LIMITS, SECTIONS
from ..runfile.text.errors import InputError
from ..runfile.text.text_data import parse_any_text
from ..tools.conversion.source import PASTED
from ..tools.conversion.source import read_pasted as read_foreign
from ..tools.deepspeed.detect import is_deepspeed
from ..tools.deepspeed.read import sections
from ..tools.program_section import with_program
from ..tools.read import read
from ..tools.reading.tools import file_format

KINDS = "a run file, a config.json, a command, another tool's file, or a model's name"
NAME = re.compile(r"[^\s{}\[\]:=,]+|https?://\S+")  # one word, or an address


def read_pasted(text: str) -> dict[str, Any]:
    """The run file, or the sections of one, that a text means; which kind the text was; and notes:
    what was assumed, and what is not modelled.
    """
    word = text.strip()
    if NAME.fullmatch(word):
        return {"run": {"model": {"name": _model_name(word)}}, "what": "model"}
    data = _data(text)
    if isinstance(data, Mapping) and data and data.keys() <= {*SECTIONS, LIMITS}:
        read(data)
        return {"run": data, "what": "run file"}
    if is_model_config(data):
        return {"run": {"model": {"config": data}}, "what": "config.json"}
    if is_deepspeed(data):
        return {"run": _deepspeed(data), "what": "DeepSpeed"}
    if isinstance(data, str) or file_format(data) is not None:
        return _foreign(text)
    raise InputError(_unknown(data))


def _data(text: str) -> Any:
    """The data of a text; the text itself where it is a command, a script or a Modelfile."""
    try:
        return parse_any_text(text, PASTED)
    except InputError:
        if text.lstrip()[:1] in ("{", "[", ""):
            raise
        return text


def _foreign(text: str) -> dict[str, Any]:
    """The run of a command or of another tool's file, by keys that the form shows."""
    found = read_foreign(text)
    reading = found[0]
    if len(found) > 1:
        sentence = f"it has {len(found)} commands; this is the first of them: {reading.name}"
        reading.assumed.insert(0, sentence)
    if reading.problems:
        raise InputError(reading.problems)
    run, meant = reading.run, Translation()
    if run.get("program") is not None:
        run, _, meant = with_program(run)
    limits = reading.run_file.get("limits")
    run |= {"limits": limits} if limits else {}
    not_modelled = (f"not modelled: {limit}" for limit in reading.limits)
    notes = [*not_modelled, *meant.warnings, *reading.assumed, *meant.assumed]
    return {"run": run, "what": f"{reading.tool} {reading.version}".rstrip(), "notes": notes}


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


def _unknown(data: Any) -> str:
    """The sentence for a text that is none of the kinds."""
    unknown = next((key for key in data if key not in SECTIONS), None) if data else None
    if unknown is None or not isinstance(data, Mapping):
        return f"{PASTED} is not {KINDS}"
    return f"{unknown!r} is not a section of a run file, and {PASTED} is not {KINDS}"
