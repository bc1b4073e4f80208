"""What tools on top of transformers.Trainer share: its arguments, types, DeepSpeed's file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...runfile.config import ModelConfig
from ...runfile.find_model.model_source import find_model
from ...runfile.text.errors import InputError, quoted
from ...training.lengths.samplers import GROUPED
from ..translation.arguments import MEMORY, Argument, ArgumentTable, argument_table
from ..translation.kinds import NAMES, TEXT, fits, kind_of
from ..translation.kinds import WHOLE as WHOLE_NUMBER
from .named_files import NamedFiles, repeated_note
from .options import OptionSyntax, parse_options
from .reading import Limit, Reading, Section

TRAINER_TABLE = "transformers/arguments"
TRAINER = argument_table(TRAINER_TABLE)
OLDER = argument_table("transformers4", Path(__file__).parent)  # what transformers 5 left out
# What a switch may say besides true and false (transformers 4.57.1 hf_argparser.py string_to_bool).
WORDS = {"yes": True, "y": True, "t": True, "no": False, "n": False, "f": False}
SIGNED = ("freeze_trainable_layers",)  # its sign says from which end
# Arguments whose default, None, does not say their type.
WHOLE = ("gradient_accumulation_steps", "generation_batch_size", "steps_per_generation")


def trainer_args(values: Mapping[str, Any], *, without: tuple[str, ...] = ()) -> dict[str, Any]:
    """The given arguments of transformers' Trainer that change memory."""
    return {
        name: value
        for name, value in values.items()
        if name not in without and name in TRAINER and TRAINER[name].effect == MEMORY
    }


def sampling_data(values: Mapping[str, Any]) -> Section:
    """What a program's data say of the order of its examples, where they are grouped."""
    given = (values.get("group_by_length"), values.get("train_sampling_strategy"))
    return {"sampling": GROUPED} if True in given or GROUPED in given else {}


def chosen_values(table: ArgumentTable, kept: Mapping[str, Any]) -> dict[str, Any]:
    """The value of every argument: as given, else the tool's default, also for an empty number."""
    values = {name: kept.get(name, row.default) for name, row in table.items()}
    empty = [name for name, value in values.items() if value is None]
    numbers = {name: table[name].default for name in empty}
    return values | {k: one for k, one in numbers.items() if isinstance(one, int | float)}


def type_problems(table: ArgumentTable, given: Mapping[str, Any]) -> Iterator[str]:
    """A sentence for each value whose type is not that of the argument's default."""
    for name, value in given.items():
        row = table[name]
        told = value is not None and row.effect == MEMORY and not row.loose
        if told and (word := _wanted(name, value, row)):
            yield f"{name}={quoted(value)} must be {word}"


def _wanted(name: str, value: Any, row: Argument) -> str:
    """What a value must be; empty where it is that."""
    kind = WHOLE_NUMBER if name in WHOLE else kind_of(name, row.type, row.default)
    if kind == TEXT and "target" in name:
        kind = NAMES
    if kind == TEXT and row.default is None and isinstance(value, bool):
        return ""  # in the place of a path: none, or the last one
    if kind != WHOLE_NUMBER:
        return "" if fits(kind, value) else kind
    least = name in WHOLE or (isinstance(row.default, int) and row.default > 0)
    if least and name not in SIGNED:
        return "" if fits(kind, value) and value >= 1 else f"{kind}, 1 or more"
    return "" if fits(kind, value, signed=True) else kind


def deepspeed_data(
    reading: Reading, name: Any, files: NamedFiles, bundled: Mapping[str, Any]
) -> Section | None:
    """DeepSpeed's configuration: an object, a file, or one of the tool's own files by its name."""
    if not name:
        return None
    if isinstance(name, Mapping):
        return dict(name)
    if not isinstance(name, str):
        raise InputError(f"deepspeed={quoted(name)} must be a path or an object")
    own = name.replace("\\", "/").rpartition("/")[2].removesuffix(".json")
    if own in bundled and not files.exists(name):
        reading.assumed.append(f"deepspeed={name} is the file of {reading.tool} {reading.version}")
        return dict(bundled[own])
    if "$" in name:
        why = "the script does not say which file; what DeepSpeed shards is not known, and left out"
        reading.limit(f"deepspeed={name}", why)
        return None
    data = files.data(name, "deepspeed")
    if not isinstance(data, Mapping):
        raise InputError(f"deepspeed={name}: DeepSpeed's file has keys and values at its top")
    return dict(data)


def is_zero3(deepspeed: Section | None) -> bool:
    """Whether parameters are sharded by DeepSpeed."""
    zero = (deepspeed or {}).get("zero_optimization")
    return isinstance(zero, Mapping) and zero.get("stage") == 3


def has_vision_tower(name: str) -> bool:
    """Whether a model has a vision tower; False where it is not known, which the estimate says."""
    try:
        return bool(find_model(ModelConfig(name=name)).arch.tower)
    except InputError:
        return False


def frozen_tower(reading: Reading, key: str, model: str, deepspeed: Section | None) -> Section:
    """Keys of `training` for a vision tower that a key, which is true, leaves out of training."""
    if not has_vision_tower(model):
        return {}
    if deepspeed:
        why = "the estimate trains the vision tower, too"
        reading.limits.append(Limit(key=f"{key}=true", why=why, could="less"))
        return {}
    return {"freeze_vision_tower": True}


def lora_keys(peft: Section, adapter_dtype: str) -> Section:
    """LoraConfig's arguments as `training.lora` has them."""
    names = {"lora_dropout": "dropout", "use_dora": "dora"}
    keys = {names.get(key, key): value for key, value in peft.items()}
    return keys | {"adapter_dtype": adapter_dtype}


def parsed_arguments(
    tool: str, words: Sequence[str], table: ArgumentTable, lists: frozenset[str] = frozenset()
) -> tuple[dict[str, Any], list[str]]:
    """The values of HfArgumentParser's options, and a sentence for each word that is none."""
    switches = frozenset(name for name, row in table.items() if isinstance(row.default, bool))
    parsed = parse_options(tool, words, table, OptionSyntax(switches=switches, lists=lists))
    strays = [f"{word!r} is not an option of {tool}" for word in parsed.strays]
    values = {
        name: WORDS.get(value.lower(), value)
        if name in switches and isinstance(value, str)
        else value
        for name, value in parsed.values.items()
    }
    return values, [*parsed.problems, *strays]


def file_arguments(
    tool: str, name: str, files: NamedFiles, program: str, notes: list[str]
) -> dict[str, Any]:
    """The arguments of a file that a command names in the place of options; `notes` gets a sentence
    on keys that are there twice, of which yaml.safe_load takes the last.
    """
    repeated: list[str] = []
    data = files.data(name, program, repeated)
    notes += repeated_note(repeated)
    if not isinstance(data, Mapping):
        raise InputError(f"{name}: a file of {tool} has keys and values at its top")
    return dict(data)
