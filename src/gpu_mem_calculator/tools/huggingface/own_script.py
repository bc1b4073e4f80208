"""A user's own script whose text can be read: what it hands to its trainer, or what its loop does.

A training loop is said in the words of transformers.Trainer.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...runfile.text.errors import InputError
from ..reading.command import Command
from ..reading.keys import sort_keys
from ..reading.reading import Reading, Section
from ..script.reader import read_script
from ..script.record import ScriptRecord
from ..script.values import Thing, plain, value_of
from ..translation.arguments import FREE, Values, tables
from ..translation.tools import TRAINER
from .own_options import LENGTH_NAMES, MODEL_NAMES
from .script_model import PassedOn, model_sections
from .script_rows import account_lines, account_origins, computed, honoured, limited, listed
from .script_trainer import optimizer_values, trainer_values
from .sections import SETTLE
from .trainers import (
    is_loop,
    loop_model,
    made_trainer,
    renamed,
    script_arguments,
    trained_trainers,
    trainer_of_text,
)

STEPS = "gradient_accumulation_steps"
TABLES = tables(__file__)
BATCH_NAMES: list[str] = TABLES["batch_names"]
KNOWN: list[str] = TABLES["known"]  # arguments and facts of an Accelerator
ALIKE = (
    "a loop of the script's own holds what transformers.Trainer holds with the same batch, "
    "optimizer and precision"
)
AFTER = "it trains, too, and only the first trainer is estimated; check each in a script of its own"

PARSED = "(parsed)"
FILE_PARSERS = {"TrlParser", "H4ArgumentParser"}  # they read --config themselves


def follow(command: Command, given: Values) -> ScriptRecord | None:
    """What the script does with these options; None where its file cannot be read."""
    path = command.words[0]
    if command.module or not command.files.exists(path):
        return None
    gpus = command.num_gpus or 1
    environment = dict(command.environment)
    if command.launcher:
        environment = {"WORLD_SIZE": str(gpus), "RANK": "0", "LOCAL_RANK": "0", **environment}
    text = command.files.text(path)
    return read_script(text, path, command.files, given, environment, gpus, command.words)


def tool_of(found: ScriptRecord, command: Command) -> str:
    """The trainer of a script, or a sentence where it makes none."""
    tool = trainer_of_text(found, command.program)
    if tool is None:
        why = "makes no trainer of transformers or TRL, so its arguments do not say what it does"
        use = f"use gpu-mem-calc trace -- python {command.words[0]}"
        raise InputError(f"{command.program} {why}; {use}")
    return tool


def parses_arguments(found: ScriptRecord) -> bool:
    """Whether a parser of transformers or TRL makes the trainer's arguments options."""
    return any(one.kind == "arguments" and "(parsed)" in one.values for one in found.things)


def reads_config(found: ScriptRecord) -> bool:
    """Whether the script's parser reads the file of --config itself."""
    return bool(found.facts.get("parsers", set()) & FILE_PARSERS)


def script_means(found: ScriptRecord, tool: str, reading: Reading, given: Values) -> PassedOn:
    """What the script hands to its trainer; a model that it does not show is taken by the usual
    name of its option.
    """
    trainer = made_trainer(found)
    if trainer is None and not is_loop(found):
        why = "the trainer is made where the text cannot be followed"
        limited(reading, 0, tool.rpartition(".")[2], why)
    result = passed_on(found, trainer, tool, reading, given)
    options = {**found.options, **given}
    for name in ("model_name_or_path", *MODEL_NAMES):
        value = options.get(name)
        if isinstance(value, str) and "config" not in result.model:
            result.values.setdefault("model_name_or_path", value)
    return result


def passed_on(
    found: ScriptRecord, trainer: Thing | None, tool: str, reading: Reading, given: Values
) -> PassedOn:
    """What the lines of a script say; each of them is accounted for in the reading.

    - given: the options of the command
    """
    account_lines(found, reading)
    for other in trained_trainers(found):
        if other is not trainer:
            limited(reading, other.line, other.name, AFTER, saves=False)
    if trainer is None:
        values = loop_values(found, reading)
        model = found.facts.get("loop model")
    else:
        values = trainer_values(found, trainer, tool, reading)
        values = {**_arguments(trainer, tool, reading, given), **values}
        model = trainer.values.get("model")
    result = model_sections(found, trainer, model, reading)
    result.values = {**values, **result.values}
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
        reading.limit("torch.compile", why)
    account_origins(found, reading)
    return result


def _arguments(trainer: Thing, tool: str, reading: Reading, given: Values) -> Section:
    """The values of TrainingArguments and its kind, which the script makes or is handed."""
    arguments = trainer.values.get("args")
    if arguments is None:
        return {}
    if isinstance(arguments, Thing) and arguments.kind == "arguments":
        own = argument_values_of(arguments, tool, reading)
        if tool != TRAINER and arguments.name.endswith("TrainingArguments"):
            # SFTConfig(**args.to_dict()), so these defaults hold (sft_trainer.py __init__)
            own = {"gradient_checkpointing": False, "bf16": False, **own}
        return own
    why = "its file is not at hand; the command's options and the defaults are taken"
    limited(reading, trainer.line_of("args"), f"{trainer.name}(args)", why)
    table = script_arguments(tool).table
    known = {renamed().get(key, key): value for key, value in given.items()}
    known = {key: value for key, value in known.items() if key in table and plain(value)}
    return sort_keys(reading, table, known, "--")


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
        reading.limit("fp16=true", why, "more", adds="2*weights")


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
            if name in table and table[name].effect != FREE:
                # with more micro-batches the gradients of earlier ones are held, at most all
                adds, saves = ("gradients", False) if name == STEPS else (True, True)
                what = f"{arguments.name}({key})"
                computed(reading, line or arguments.line, what, adds=adds, saves=saves)
        else:
            prefix = f"{reading.script}:{line or arguments.line} {arguments.name}."
            values |= sort_keys(reading, table, {name: listed(value)}, prefix)
    return values


def _add_lengths(
    found: ScriptRecord, trainer: Thing | None, options: Values, result: PassedOn, reading: Reading
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
        reading.limit("length of a sequence", why, settle=SETTLE)
    if not named and not declared:
        return
    if named:
        line = max(named, key=lambda place: named[place])
        length = named[line]
        honoured(reading, line, f"sequences of {length} tokens")
    else:
        length = max(declared.values())
    multiple = value_of(value_of(trainer, "data_collator"), "pad_to_multiple_of")
    if isinstance(multiple, int) and multiple > 0:
        length = -(-length // multiple) * multiple
    result.values.setdefault("max_seq_length", length)


def loop_values(found: ScriptRecord, reading: Reading) -> Section:
    """The arguments of a Trainer that does what the loop does."""
    reading.assumed.append(ALIKE)
    model = found.facts["loop model"] = loop_model(found)
    accelerators = found.of_kind("accelerator")
    values = _batches(found, reading)
    optimizers = found.of_kind("optimizer")
    if optimizers:
        values |= optimizer_values(reading, optimizers[-1], optimizers[-1].line)
    else:
        limited(reading, 0, "optimizer", "the loop's optimizer is not shown")
    clipped = [one for one in (*accelerators, model) if one and one.values.get("clipped")]
    values["max_grad_norm"] = 1.0 if clipped else 0.0
    values |= _precision(found, accelerators, reading)
    if found.facts.get("own loss") and not found.facts.get("model loss"):
        why = "a loss of one's own may keep other tensors than the model's"
        limited(reading, found.facts["own loss"], "loss", why)
    return values


def _batches(found: ScriptRecord, reading: Reading) -> Section:
    """The first loader's batch is trained; another one's is evaluated."""
    loaders = found.of_kind("loader")
    values: Section = {}
    used = [one for one in loaders if one is found.facts.get("loader")]
    trained = used or [one for one in loaders if one.values.get("shuffle") is True]
    others = [one for one in loaders if one not in trained]
    for kind, some in (("train", (trained or loaders)[:1]), ("eval", others[-1:])):
        for loader in some:
            key, size = f"per_device_{kind}_batch_size", loader.values.get("batch_size", 1)
            line = loader.line_of("batch_size")
            if isinstance(size, int):
                values[key] = size
                honoured(reading, line, f"DataLoader(batch_size={size})")
            else:
                computed(reading, line, "DataLoader(batch_size)", saves="tokens")
    if not loaders:
        values |= _named_batch(found, reading)
    if len(loaders) > 1 and found.facts.get("evaluates"):
        values["eval_strategy"] = "epoch"
    else:
        values.pop("per_device_eval_batch_size", None)
    steps = found.options.get(STEPS)
    for one in found.of_kind("accelerator"):
        steps = one.values.get(STEPS, steps)
    if isinstance(steps, int) and steps > 0:
        values[STEPS] = steps
    return values


def _named_batch(found: ScriptRecord, reading: Reading) -> Section:
    """The batch of a loop without a loader, by the usual names of options."""
    for name in BATCH_NAMES:
        size = found.options.get(name)
        if isinstance(size, int) and size > 0:
            reading.assumed.append(f"{name}={size} is the loop's batch, by its name")
            return {"per_device_train_batch_size": size}
    why = "the loop's batch is not shown, so the default is taken"
    limited(reading, 0, "batch", why, saves="tokens")
    return {}


def _precision(found: ScriptRecord, accelerators: list[Thing], reading: Reading) -> Section:
    """Mixed precision: Accelerate's argument, or torch.autocast around the forward pass."""
    word = found.facts.get("autocast")
    for one in accelerators:
        word = one.values.get("mixed_precision", word)
        for key in one.values:
            if key not in KNOWN and not key.startswith("["):
                limited(reading, one.line_of(key), f"Accelerator({key})", "not understood")
    if word in ("bf16", "bfloat16"):
        return {"bf16": True}
    if word in ("fp16", "float16"):
        return {"fp16": True}
    if word not in (None, "no", False):
        limited(reading, 0, "mixed precision", "the text does not show it")
    return {}
