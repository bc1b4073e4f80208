"""What a script hands to its trainer: arguments, the model, adapters, quantization, the data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field

from ..reading.keys import sort_keys
from ..reading.reading import Limit, Reading
from ..script.record import ScriptRecord
from ..script.values import Thing, plain
from .own_options import LENGTH_NAMES
from .script_loop import loop_values
from .script_model import model_sections
from .script_rows import account_lines, account_origins, honoured, limited
from .script_trainer import trainer_values
from .tables import renamed, script_arguments
from .trainers import TRAINER

Section = dict[str, Any]
PARSED = "(parsed)"
# With more micro-batches the gradients of earlier ones are held, at most all of them.
BOUNDS: Mapping[str, Any] = {"gradient_accumulation_steps": {"adds": "gradients", "saves": False}}


class PassedOn(Struct, kw_only=True):
    """Arguments by their names in TRL's scripts; what the script loads the model with, None where
    the trainer loads it; keys of `training` and of `model` that the script's lines mean.
    """

    values: Section = field(default_factory=dict)
    loaded: Section | None = None
    training: Section = field(default_factory=dict)
    model: Section = field(default_factory=dict)
    data: Section = field(default_factory=dict)


def passed_on(
    found: ScriptRecord,
    trainer: Thing | None,
    tool: str,
    reading: Reading,
    given: Mapping[str, Any],
) -> PassedOn:
    """What the lines of a script say; each of them is accounted for in the reading.

    - given: the options of the command
    """
    result = PassedOn()
    account_lines(found, reading)
    if trainer is None:
        result.values = loop_values(found, reading)
        model = found.facts.get("loop model")
    else:
        result.values = trainer_values(found, trainer, tool, reading)
        arguments = trainer.values.get("args")
        if isinstance(arguments, Thing) and arguments.kind == "arguments":
            own = argument_values_of(arguments, tool, reading)
            if tool != TRAINER and arguments.name.endswith("TrainingArguments"):
                # SFTConfig(**args.to_dict()), so these defaults hold (sft_trainer.py __init__)
                own = {"gradient_checkpointing": False, "bf16": False, **own}
            result.values = {**own, **result.values}
        elif arguments is not None:
            why = "its file is not at hand; the command's options and the defaults are taken"
            limited(reading, trainer.lines.get("args", trainer.line), f"{trainer.name}(args)", why)
            table = script_arguments(tool).table
            known = {renamed().get(key, key): value for key, value in given.items()}
            known = {key: value for key, value in known.items() if key in table and plain(value)}
            result.values = {**sort_keys(reading, table, known, "--"), **result.values}
        model = trainer.values.get("model")
    sections = model_sections(found, trainer, model, reading)
    result.loaded, result.training = sections.loaded, sections.training
    result.model = sections.model
    result.values = {**result.values, **sections.values}
    options = {**found.options, **given, **result.values}
    if tool == TRAINER:
        _add_lengths(found, trainer, options, result, reading)
    if found.facts.get("metrics"):
        result.data["compute_metrics"] = True
    _add_precision(result, reading)
    evaluates = str(result.values.get("eval_strategy", "no")) != "no"
    if result.training.get("compile") and (evaluates or result.values.get("quantization_config")):
        del result.training["compile"]
        why = "not modelled with a quantized base or an evaluation; estimated without it"
        reading.limits.append(Limit(key="torch.compile", why=why))
    account_origins(found, reading)
    return result


def _add_precision(result: PassedOn, reading: Reading) -> None:
    """fp16 over weights whose dtype the script leaves to the checkpoint, often bfloat16.

    torch's gradient scaler refuses gradients in 16 bits, so such a script was written for weights
    in float32, the default of transformers 4; adapters are in float32 either way.
    """
    if not result.values.get("fp16") or result.loaded is None or "dtype" in result.loaded:
        return
    if result.values.get("peft_config") is None and not result.values.get("quantization_config"):
        result.loaded["dtype"] = "float32"
        why = "transformers 4's default, because fp16 refuses gradients in 16 bits"
        reading.assumed.append(f"weights are loaded in float32: {why}")
    else:
        result.values |= {"fp16": False, "bf16": True}
        why = "estimated as bf16; weights that are stored in bfloat16 are cast to float16 beside"
        limit = Limit(key="fp16=true", why=why, could="more", adds="2*weights")
        reading.limits.append(limit)


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
                what = f"{arguments.name}({key})"
                limited(reading, line or arguments.line, what, why, **BOUNDS.get(name, {}))
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
    found: ScriptRecord,
    trainer: Thing | None,
    options: Mapping[str, Any],
    result: PassedOn,
    reading: Reading,
) -> None:
    """Tokens of a sequence: as a tokenizer cuts them, or as a name of the script says."""
    named: Mapping[int, int] = found.lengths or found.named_lengths
    declared = {
        name: value
        for name, value in options.items()
        if name in LENGTH_NAMES and isinstance(value, int) and not isinstance(value, bool)
    }
    if not named and not declared and found.unused_lengths:
        named = found.unused_lengths
        why = "only code that nothing calls says it"
        settle = "--set program.data.seq_len=TOKENS"
        reading.limits.append(Limit(key="length of a sequence", why=why, settle=settle))
    if not named and not declared:
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
