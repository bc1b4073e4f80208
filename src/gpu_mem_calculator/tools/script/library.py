"""What functions and classes of libraries make: models, arguments, trainers, optimizers, data.

A name's handler says what a call means; of other names their form says it, such as `...Config`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from typing import Any

from ..translation.arguments import tables
from .definitions import ScriptWorld
from .methods import compile_model, enable_checkpointing
from .record import FREE
from .rows import account, honour, limit, row
from .unknown_calls import look_through, note_lengths, other_call
from .values import UNKNOWN, Arguments, Imported, ScriptFunction, Thing, is_thing

Handler = Callable[[ScriptWorld, Imported, Arguments], Any]
TABLES = tables(__file__)
MODEL_CLASS, TOKENIZER_CLASS, ARGUMENT_CLASS, ADAPTER_CLASS, OTHER_QUANTIZATION, DATA_CLASS = (
    re.compile("|".join(TABLES[name]))
    for name in ("models", "tokenizers", "arguments", "adapters", "quantizations", "data")
)
OPTIMIZERS = tuple(TABLES["optimizers"])
SOURCE, ON_HOST = "pretrained_model_name_or_path", "texts and their tokens are on the host"
HANDLERS: dict[str, Handler] = {}


def handles(*names: str) -> Callable[[Handler], Handler]:
    """Make a function the handler of calls of these names."""

    def register(handler: Handler) -> Handler:
        HANDLERS.update(dict.fromkeys(names, handler))
        return handler

    return register


def made_of(kind: str, name: str, arguments: Arguments) -> Thing:
    """An object with the arguments that it is made of."""
    values = dict(arguments.named)
    values |= {f"[{place}]": one for place, one in enumerate(arguments.positional)}
    if arguments.is_open:
        values["**"] = UNKNOWN
    lines = {**arguments.lines, **{f"[{i}]": one for i, one in enumerate(arguments.places)}}
    return Thing(kind=kind, name=name, line=arguments.line, values=values, lines=lines)


def load(world: Any, owner: str, name: str, arguments: Arguments) -> Any:
    """from_pretrained and from_config of a class."""
    if TOKENIZER_CLASS.fullmatch(owner):
        note_lengths(world, arguments)
        world.note(arguments, ON_HOST, FREE)
        return made_of("tokenizer", owner, arguments)
    if owner in ("PeftModel", "PeftModelForCausalLM"):
        return _load_adapter(world, arguments)
    if owner.startswith("Fast") and name == "from_pretrained":  # of Unsloth
        return (_from_pretrained(world, owner, arguments), made_of("tokenizer", owner, arguments))
    if MODEL_CLASS.fullmatch(owner) or owner.endswith(("Model", "LM")):
        if name == "from_config":
            return from_config(world, owner, arguments)
        return _from_pretrained(world, owner, arguments)
    if owner == "GenerationConfig":
        return made_of("data", owner, arguments)
    if owner in ("PeftConfig", "LoraConfig"):
        return world.make(made_of("peft", owner, arguments))
    if owner.endswith("Config"):
        thing = made_of("config", owner, arguments)
        thing.values["source"] = arguments.get(SOURCE, 0, UNKNOWN)
        thing.values.pop("[0]", None)
        return world.make(thing)
    return other_call(world, Imported(f"{owner}.{name}"), arguments)


def _from_pretrained(world: ScriptWorld, owner: str, arguments: Arguments) -> Thing:
    thing = made_of("model", owner, arguments)
    sources = ("model_name", SOURCE, "[0]")  # the first is Unsloth's name of it
    written = next((one for one in sources if one in thing.values), "")
    thing.values["source"] = thing.values.get(written, UNKNOWN)
    thing.lines["source"] = thing.lines.get(written, arguments.line)
    for name in sources:
        thing.values.pop(name, None)
    thing.values["load"] = [key for key in arguments.named if key not in sources]
    quantization = thing.values.get("quantization_config")
    if is_thing(quantization, "quantization"):
        thing.values["quantization"] = quantization
    for bits in ("load_in_4bit", "load_in_8bit"):
        if thing.values.get(bits) is True and not thing.values.get("quantization"):
            made = Thing(kind="quantization", line=arguments.line, values={bits: True})
            thing.values["quantization"] = made
    return world.make(thing)


def _load_adapter(world: ScriptWorld, arguments: Arguments) -> Any:
    """PeftModel.from_pretrained(model, path): adapters of a checkpoint."""
    model = arguments.get("model", 0)
    if not is_thing(model, "model"):
        return UNKNOWN
    path = arguments.get("model_id", 1)
    data = world.data(f"{path}/adapter_config.json") if isinstance(path, str) else UNKNOWN
    trained = arguments.get("is_trainable", None, False)
    if isinstance(data, Mapping):
        model.values["peft"] = Thing(kind="peft", name="LoraConfig", values=dict(data))
        honour(world, arguments)
    elif trained is True:
        limit(world, arguments, "the adapter's own file says its size, and is not at hand")
        model.values["peft"] = Thing(kind="peft", name="LoraConfig", line=arguments.line)
    else:
        why = "an adapter that is not trained is added"  # smaller than the weights it adapts
        limit(world, arguments, why, adds="2*weights", saves=False)
    return model


def from_config(world: ScriptWorld, owner: str, arguments: Arguments) -> Thing:
    """A model with new weights, in float32 (modeling_utils.py _from_config)."""
    thing = made_of("model", owner, arguments)
    config = thing.values.pop("[0]", thing.values.get("config", UNKNOWN))
    thing.values["config"], thing.values["new"] = config, True
    if isinstance(config, Thing):
        thing.values["source"] = config.values.get("source", UNKNOWN)
    thing.values["load"] = [key for key in arguments.named if key != "config"]
    return world.make(thing)


@handles("LLM")
def _server(world: ScriptWorld, called: Imported, arguments: Arguments) -> Any:
    """vLLM's class LLM, which generates in the script's own process."""
    if called.package != "vllm":
        return other_call(world, called, arguments)
    honour(world, arguments)
    return world.make(made_of("server", called.path, arguments))


@handles("get_peft_model")
def _get_peft_model(world: ScriptWorld, called: Imported, arguments: Arguments) -> Any:
    """get_peft_model(model, config): the base is frozen, adapters are trained."""
    model, config = arguments.get("model", 0), arguments.get("peft_config", 1)
    if not isinstance(model, Thing):
        return UNKNOWN
    if is_thing(config, "peft"):
        model.values["peft"] = config
        honour(world, arguments)
    elif called.path.rpartition(".")[0].rpartition(".")[2].startswith("Fast"):  # of Unsloth
        model.values["peft"] = made_of("peft", "LoraConfig", arguments)
        model.values["peft"].values.pop("[0]", None)
        honour(world, arguments)
    else:
        limit(world, arguments, "the adapter's configuration is not shown")
    if arguments.get("autocast_adapter_dtype", None, True) is False:
        parts = "gradients+optimizer_states"
        limit(world, arguments, "adapters in the dtype of the base", adds=False, saves=parts)
    return model


@handles(
    *("prepare_model_for_kbit_training", "prepare_model_for_int8_training"),
    "prepare_model_for_training",
)
def _prepare_kbit(world: ScriptWorld, called: Imported, arguments: Arguments) -> Any:
    """prepare_model_for_kbit_training and its older names (peft utils/other.py): the base is
    frozen, what is not quantized becomes fp32, and checkpointing is on.
    """
    model = arguments.get("model", 0)
    if not isinstance(model, Thing):
        return UNKNOWN
    model.values["prepared"] = arguments.line
    honour(world, arguments)
    checkpointing = arguments.get("use_gradient_checkpointing", 1, True)
    if checkpointing is UNKNOWN:
        limit(world, arguments, "the script computes use_gradient_checkpointing when it runs")
    if checkpointing and model.values.get("quantization"):
        settings = arguments.get("gradient_checkpointing_kwargs", 2)
        named = {"gradient_checkpointing_kwargs": settings} if settings else {}
        where = Arguments(named=named, line=arguments.line, text=arguments.text)
        enable_checkpointing(world, model, where)
    return model


@handles("compile")
def _compile(world: ScriptWorld, called: Imported, arguments: Arguments) -> Any:
    models = arguments.things("model")
    if not models:
        return arguments.first
    if any(one.values.get("model") is models[0] for one in world.things("trainer")):
        why = "the trainer holds the model as it was before"
        world.seen(arguments.line, arguments.text, FREE, why)
        return models[0]
    return compile_model(world, models[0], arguments)


@handles(
    *("DistributedDataParallel", "DDP", "FullyShardedDataParallel", "FSDP"),
    *("DataParallel", "fully_shard"),
)
def _wrap(world: ScriptWorld, called: Imported, arguments: Arguments) -> Any:
    """DistributedDataParallel, FullyShardedDataParallel, DataParallel by hand."""
    models = arguments.things("model")
    if models and called.last in ("DistributedDataParallel", "DDP"):
        honour(world, arguments)
    else:
        limit(world, arguments, "this wrapping by hand is not modelled")
    return models[0] if models else UNKNOWN


@handles("initialize")
def _initialize(world: ScriptWorld, called: Imported, arguments: Arguments) -> Any:
    """deepspeed.initialize(model=, config=): an engine, an optimizer and so on."""
    if called.package != "deepspeed":
        return other_call(world, called, arguments)
    models = arguments.things("model")
    config = arguments.get("config", None, arguments.get("config_params"))
    if isinstance(config, str):
        config = world.data(config)
    thing = made_of("engine", "deepspeed", arguments)
    thing.values["config"], thing.model = config, models[0] if models else None
    world.make(thing)
    limit(world, arguments, "DeepSpeed started by hand is not read")
    return [models[0] if models else UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN]


@handles("BitsAndBytesConfig")
def _quantization(world: ScriptWorld, called: Imported, arguments: Arguments) -> Thing:
    return world.make(made_of("quantization", "BitsAndBytesConfig", arguments))


@handles("Accelerator")
def _accelerator(world: ScriptWorld, called: Imported, arguments: Arguments) -> Thing:
    honour(world, arguments)
    return world.make(made_of("accelerator", "Accelerator", arguments))


@handles("DeepSpeedPlugin", "FullyShardedDataParallelPlugin")
def _plugin(world: ScriptWorld, called: Imported, arguments: Arguments) -> Thing:
    return made_of("plugin", called.last, arguments)


@handles("setup_chat_format", "clone_chat_template")
def _chat_format(world: ScriptWorld, called: Imported, arguments: Arguments) -> Any:
    """trl.setup_chat_format(model, tokenizer): two tokens more (trl models/utils.py)."""
    models = arguments.things("model")
    if models:
        models[0].values["resized"] = arguments
    return [*arguments.positional[:2]] if len(arguments.positional) > 1 else UNKNOWN


@handles(
    *("apply_liger_kernel_to_llama", "apply_liger_kernel_to_qwen2"), "apply_liger_kernel_to_mistral"
)
def _liger(world: ScriptWorld, called: Imported, arguments: Arguments) -> Any:
    """apply_liger_kernel_to_llama() and its kind, before the model is loaded."""
    limit(world, arguments, "Liger's kernels applied by hand; use_liger_kernel=true is modelled")
    return UNKNOWN


@handles("snapshot_download")
def _downloaded(world: ScriptWorld, called: Imported, arguments: Arguments) -> Any:
    """A download's folder is named as the model is."""
    return arguments.get("repo_id", 0, arguments.get("model_id", 0, UNKNOWN))


@handles("clip_grad_norm_")
def _clip(world: ScriptWorld, called: Imported, arguments: Arguments) -> Any:
    for one in arguments.every():
        model = one if is_thing(one, "model") else getattr(one, "model", None)
        if isinstance(model, Thing):
            model.values["clipped"] = True
    account(world, arguments, row("function", "clip_grad_norm_"))
    return UNKNOWN


def call_library(world: ScriptWorld, called: Imported, arguments: Arguments) -> Any:
    """The value of a call of a library."""
    name, owner = called.last, called.path.rpartition(".")[0].rpartition(".")[2]
    if name in ("from_pretrained", "from_config"):
        return load(world, owner, name, arguments)
    if name in HANDLERS:
        return HANDLERS[name](world, called, arguments)
    made = _construct(world, called, arguments)
    return made if made is not UNKNOWN else other_call(world, called, arguments)


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
    if DATA_CLASS.fullmatch(name) or called.package == "datasets":
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
    made = callback.made_of if isinstance(callback, Thing) else None
    if made is None:
        return
    for node in made.node.body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("on_"):
            method = ScriptFunction(node, made.scope, callback)
            world.follow(method, Arguments(named={"model": model}))


def _data(world: ScriptWorld, name: str, arguments: Arguments) -> Thing:
    """Data on the host; a length that it is cut to is noted."""
    note_lengths(world, arguments)
    look_through(world, arguments)
    world.note(arguments, ON_HOST, FREE)
    kind = "loader" if name == "DataLoader" else "data"
    return world.make(made_of(kind, name, arguments))
