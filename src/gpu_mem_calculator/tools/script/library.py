"""What functions and classes of libraries make: models, arguments, trainers, optimizers, data."""

from __future__ import annotations

import ast
import re
from typing import Any

from ..translation.arguments import tables
from .accounting import honour, limit
from .loading import HANDLERS, MODEL_CLASS, TOKENIZER_CLASS, from_config, load, made_of
from .record import FREE
from .unknown_calls import look_through, note_lengths, other_call
from .values import UNKNOWN, Arguments, Imported, ScriptClass, ScriptFunction, ScriptWorld, Thing

ARGUMENT_CLASS = re.compile(
    r"(\w*TrainingArguments|(SFT|DPO|KTO|GRPO|RLOO|Reward|ORPO|CPO|PPO|PPOv2|GKD|BCO|XPO|PRM|TPO"
    r"|OnlineDPO|NashMD|Distillation|GOLD|AsyncGRPO|SSD|SDFT|SDPO)Config)"
)
ADAPTER_CLASS = re.compile(
    r"(Lora|AdaLora|IA3|PromptTuning|PrefixTuning|PromptEncoder|LoHa|LoKr|OFT|BOFT|Vera|LNTuning"
    r"|AdaptionPrompt|FourierFT|MultitaskPromptTuning|Poly|XLora|HRA|VBLoRA|Bone|RandLora|Miss)Config"
)
OTHER_QUANTIZATION = re.compile(
    r"(GPTQ|Awq|Aqlm|Quanto|Eetq|Hqq|TorchAo|FPQuant|FbgemmFp8|FineGrainedFP8|Mxfp4|HiggsConfig"
    r"|Vptq|CompressedTensors)Config"
)
OPTIMIZERS = tuple(tables(__file__)["optimizers"])
DATA_MODULES = ("datasets",)
DATA_CLASS = re.compile(
    r"(load_dataset|load_from_disk|concatenate_datasets|interleave_datasets|DataLoader"
    r"|ConstantLengthDataset|TextDataset|\w*DataCollator\w*|default_data_collator|read_csv|Dataset"
    r"|DatasetDict|TensorDataset|DistributedSampler|RandomSampler|SequentialSampler|random_split|Subset)"
)


def call_library(world: ScriptWorld, called: Imported, arguments: Arguments) -> Any:
    """The value of a call of a library."""
    name, owner = called.last, called.path.rpartition(".")[0].rpartition(".")[2]
    if name in ("from_pretrained", "from_config"):
        return load(world, owner, name, arguments)
    if name in HANDLERS:
        return HANDLERS[name](world, called, arguments)
    made = _construct(world, called, arguments)
    if made is not UNKNOWN:
        return made
    return other_call(world, called, arguments)


def _construct(world: ScriptWorld, called: Imported, arguments: Arguments) -> Any:
    """An object of a class whose name says what it is."""
    name = called.last
    if ARGUMENT_CLASS.fullmatch(name):
        return make_arguments(world, name, arguments)
    if name.endswith("Trainer") and name[:1].isupper():
        return make_trainer(world, name, called, arguments)
    if ADAPTER_CLASS.fullmatch(name):
        return world.make(made_of("peft", name, arguments))
    if name in OPTIMIZERS:
        honour(world, arguments)
        return world.make(made_of("optimizer", called.path, arguments))
    if OTHER_QUANTIZATION.fullmatch(name):
        limit(world, arguments, "this quantization of a base model is not modelled")
        return made_of("other", name, arguments)
    if MODEL_CLASS.fullmatch(name):
        return from_config(world, name, arguments)
    if DATA_CLASS.fullmatch(name) or called.package in DATA_MODULES:
        return _data(world, name, arguments)
    if TOKENIZER_CLASS.fullmatch(name):
        return made_of("tokenizer", name, arguments)
    if name.endswith("Config") and called.package in ("transformers", "peft"):
        return world.make(made_of("config", name, arguments))
    return UNKNOWN


def make_arguments(world: ScriptWorld, name: str, arguments: Arguments) -> Thing:
    """TrainingArguments, SFTConfig and so on; the first place is output_dir."""
    thing = made_of("arguments", name, arguments)
    if "[0]" in thing.values:
        thing.values["output_dir"] = thing.values.pop("[0]")
    return world.make(thing)


def make_trainer(world: ScriptWorld, name: str, called: Any, arguments: Arguments) -> Thing:
    """A trainer: its places are model and args (trainer.py, sft_trainer.py __init__)."""
    thing = made_of("trainer", name, arguments)
    thing.values["path"] = getattr(called, "path", name)
    names = ("model", "ref_model", "args") if name == "DPOTrainer" else ("model", "args")
    for place, key in enumerate(names):
        if f"[{place}]" in thing.values:
            thing.values[key] = thing.values.pop(f"[{place}]")
            thing.lines[key] = thing.lines[f"[{place}]"]
    initial = thing.values.get("model_init")
    if isinstance(initial, ScriptFunction):
        thing.values["model"] = world.follow(initial, Arguments())
    callbacks = thing.values.get("callbacks")
    for one in callbacks if isinstance(callbacks, list) else ():
        _follow_callback(world, one, thing.values.get("model", UNKNOWN))
    return world.make(thing)


def _follow_callback(world: ScriptWorld, callback: Any, model: Any) -> None:
    """The methods of a callback of the script, which get the model."""
    made = callback.values.get("(class)") if isinstance(callback, Thing) else None
    if not isinstance(made, ScriptClass):
        return
    for node in made.node.body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("on_"):
            method = ScriptFunction(node, made.scope, callback)
            world.follow(method, Arguments(named={"model": model}))


# Data, and calls that nothing above knows.


def _data(world: ScriptWorld, name: str, arguments: Arguments) -> Thing:
    """Data on the host; a length that it is cut to is noted."""
    note_lengths(world, arguments)
    kind = "loader" if name == "DataLoader" else "data"
    thing = made_of(kind, name, arguments)
    look_through(world, arguments)
    world.note(arguments, "texts and their tokens are on the host", FREE)
    return world.make(thing)
