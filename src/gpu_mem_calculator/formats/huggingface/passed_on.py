"""What a script's text passes on to its trainer: arguments, the model, LoRA, quantization."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field

from ..reading.keys import sort_keys
from ..reading.reading import Limit, Reading
from .constants import UNKNOWN
from .own_options import LENGTH_NAMES, MODEL_NAMES
from .script_text import CONFIGS, ScriptCall, ScriptText
from .tables import renamed, script_arguments
from .trainers import TRAINER

Section = dict[str, Any]
MODEL_OWNERS = ("AutoModel", "ForCausalLM", "ForSequenceClassification", "LMHeadModel")
LOADED = ("dtype", "torch_dtype", "attn_implementation", "device_map")


class PassedOn(Struct, kw_only=True):
    """Arguments by their names in TRL's scripts, and what the script loads the model with; None
    where the trainer loads it.
    """

    values: Section = field(default_factory=dict)
    loaded: Section | None = None


def declared(script: ScriptText, tool: str) -> Section:
    """Defaults that the script itself declares for its options."""
    names = (*script_arguments(tool).table, *MODEL_NAMES, *LENGTH_NAMES)
    return {
        name: value
        for name, value in script.options.items()
        if name in names and value is not UNKNOWN and value is not None
    }


def passed_on(script: ScriptText, tool: str, reading: Reading) -> PassedOn:
    """What the calls in the script's text say."""
    result = PassedOn()
    name = "TrainingArguments" if tool == TRAINER else f"{tool[4:].removesuffix('Trainer')}Config"
    classes = (*CONFIGS, name) if tool == TRAINER else (name,)
    arguments = script_arguments(tool)
    for call in script.calls:
        if call.name in classes:
            shown, hidden = _split(call)
            new = {renamed().get(key, key): value for key, value in shown.items()}
            result.values |= sort_keys(reading, arguments.table, new, f"{name}.")
            _add_hidden(reading, name, [key for key in hidden if _matters(key, arguments.table)])
    if tool == TRAINER and script.lengths:
        result.values.setdefault("max_seq_length", max(script.lengths))
    _add_model(script, result)
    _add_peft(script, result, reading)
    _add_quantization(script, result)
    return result


def _split(call: ScriptCall) -> tuple[Section, list[str]]:
    """The arguments that the text shows, and the names of the others."""
    shown = {k: v for k, v in call.arguments.items() if k and v is not UNKNOWN}
    return shown, [k for k, v in call.arguments.items() if k and v is UNKNOWN]


def _matters(key: str, table: Mapping[str, Any]) -> bool:
    row = table.get(renamed().get(key, key))
    return row is not None and row.effect != "free"


def _add_hidden(reading: Reading, call: str, names: list[str]) -> None:
    if names:
        key = f"{call}({', '.join(names)})"
        why = "the script computes it when it runs, so the default is taken"
        reading.limits.append(Limit(key=key, why=why))


def _add_model(script: ScriptText, result: PassedOn) -> None:
    """The model: what from_pretrained gets, or the trainer's own `model` where it is a name."""
    for call in script.named("from_pretrained"):
        if any(word in call.owner for word in MODEL_OWNERS):
            shown, _ = _split(call)
            model = call.arguments.get("", call.arguments.get("pretrained_model_name_or_path"))
            if isinstance(model, str):
                result.values.setdefault("model_name_or_path", model)
            result.loaded = {key: shown[key] for key in LOADED if shown.get(key) is not None}
            if shown.get("dtype", "") is None:  # torch's default, not the checkpoint's
                result.loaded["dtype"] = "float32"
            for key in ("load_in_4bit", "load_in_8bit"):
                if shown.get(key):
                    result.values[key] = True
            break
    for call in script.calls:
        model = call.arguments.get("model", UNKNOWN)
        if call.name.endswith("Trainer") and isinstance(model, str):
            result.values.setdefault("model_name_or_path", model)


def _add_peft(script: ScriptText, result: PassedOn, reading: Reading) -> None:
    for call in script.named("LoraConfig"):
        shown, hidden = _split(call)
        result.values["peft_config"] = shown
        _add_hidden(reading, "LoraConfig", hidden)


def _add_quantization(script: ScriptText, result: PassedOn) -> None:
    for call in script.named("BitsAndBytesConfig"):
        result.values["quantization_config"] = _split(call)[0]
