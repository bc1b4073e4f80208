"""What a script hands to its trainer: arguments, the model, adapters, quantization, the data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field

from ..reading.keys import sort_keys
from ..reading.reading import Reading
from ..script.record import Found
from ..script.values import UNKNOWN, Thing, plain
from .own_options import LENGTH_NAMES
from .script_loop import loop_values
from .script_model import model_sections
from .script_rows import account_lines, account_origins, honoured, limited
from .script_trainer import trainer_values
from .tables import renamed, script_arguments
from .trainers import TRAINER

Section = dict[str, Any]
PARSED = "(parsed)"


class PassedOn(Struct, kw_only=True):
    """Arguments by their names in TRL's scripts; what the script loads the model with, None where
    the trainer loads it; keys of `training` and of `model` that the script's lines mean.
    """

    values: Section = field(default_factory=dict)
    loaded: Section | None = None
    training: Section = field(default_factory=dict)
    model: Section = field(default_factory=dict)
    data: Section = field(default_factory=dict)


def passed_on(found: Found, trainer: Thing | None, tool: str, reading: Reading) -> PassedOn:
    """What the lines of a script say; each of them is accounted for in the reading."""
    result = PassedOn()
    account_lines(found, reading)
    if trainer is None:
        result.values = loop_values(found, reading)
        model = found.facts.get("loop model")
    else:
        result.values = trainer_values(found, trainer, tool, reading)
        arguments = trainer.values.get("args")
        if isinstance(arguments, Thing) and arguments.kind == "arguments":
            given = argument_values_of(arguments, tool, reading)
            if tool != TRAINER and arguments.name.endswith("TrainingArguments"):
                # SFTConfig(**args.to_dict()), so these defaults hold (sft_trainer.py __init__)
                given = {"gradient_checkpointing": False, "bf16": False, **given}
            result.values = {**given, **result.values}
        elif arguments not in (None, UNKNOWN) or arguments is UNKNOWN:
            why = "the script computes it when it runs, so the defaults are taken"
            limited(reading, trainer.line, f"{trainer.name}(args=...)", why)
        model = trainer.values.get("model")
    sections = model_sections(found, trainer, model, reading)
    result.loaded, result.training = sections.loaded, sections.training
    result.model = sections.model
    result.values = {**result.values, **sections.values}
    _add_lengths(found, trainer, tool, result, reading)
    if found.facts.get("metrics"):
        result.data["compute_metrics"] = True
    account_origins(found, reading)
    return result


def argument_values_of(arguments: Thing, tool: str, reading: Reading) -> Section:
    """The values of TrainingArguments and its kind, as the constructor and later lines set them."""
    table, values = script_arguments(tool).table, {}
    for key, value in arguments.values.items():
        if key == PARSED or key.startswith("["):
            continue
        name, line = renamed().get(key, key), arguments.lines.get(key, 0)
        if key == "**":
            why = "further arguments are computed when the script runs"
            limited(reading, arguments.line, f"{arguments.name}(**...)", why)
        elif PARSED in arguments.values and (name not in table or not line):
            if name in table and plain(value):
                values[name] = value  # of the command, which accounts for it
        elif not plain(value):
            if _matters(name, table):
                why = "the script computes it when it runs, so the default is taken"
                limited(reading, line or arguments.line, f"{arguments.name}({key})", why)
        else:
            prefix = f"{reading.script}:{line or arguments.line} {arguments.name}."
            values |= sort_keys(reading, table, {name: _listed(value)}, prefix)
    return values


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _matters(name: str, table: Mapping[str, Any]) -> bool:
    row = table.get(name)
    return row is not None and row.effect != "free"


def _add_lengths(
    found: Found, trainer: Thing | None, tool: str, result: PassedOn, reading: Reading
) -> None:
    """Tokens of a sequence: as a tokenizer cuts them, or as a name of the script says."""
    named: Mapping[int, int] = found.lengths or found.facts.get("lengths", {})
    declared = {
        name: value
        for name, value in {**found.options, **result.values}.items()
        if name in LENGTH_NAMES and isinstance(value, int) and not isinstance(value, bool)
    }
    if tool != TRAINER or not (named or declared):
        return
    if named:
        line = max(named, key=lambda place: named[place])
        length = named[line]
        honoured(reading, line, f"sequences of {length} tokens")
    else:
        length = max(declared.values())
    collator = trainer.values.get("data_collator") if trainer is not None else None
    multiple = collator.values.get("pad_to_multiple_of") if isinstance(collator, Thing) else None
    if isinstance(multiple, int) and multiple > 0:
        length = -(-length // multiple) * multiple
    result.values.setdefault("max_seq_length", length)
