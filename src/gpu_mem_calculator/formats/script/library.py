"""What functions and classes of libraries make: models, arguments, trainers, optimizers, data."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from typing import Any

from .methods import account, compile_model, enable_checkpointing, honour, limit
from .record import FREE, HONOURED, UNCLEAR
from .rows import is_plain_package, row
from .values import TRACKED, UNKNOWN, Arguments, Function, Imported, ScriptClass, Thing, World

Handler = Callable[[World, Imported, Arguments], Any]
MODEL_CLASS = re.compile(
    r"(Auto(Peft)?Model(For\w+)?|\w+For(CausalLM|SequenceClassification|TokenClassification"
    r"|ConditionalGeneration|MaskedLM|Seq2SeqLM|QuestionAnswering|MultipleChoice|CausalLMWithValueHead"
    r"|Vision2Seq|ImageTextToText)|\w+(LMHead|DoubleHeads)Model|AutoModelForCausalLMWithValueHead)"
)
TOKENIZER_CLASS = re.compile(r"\w*(Tokenizer|TokenizerFast|Processor|FeatureExtractor)")
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
OPTIMIZERS = (
    *("AdamW", "Adam", "SGD", "Adafactor", "Adagrad", "RMSprop", "AdamW8bit", "PagedAdamW8bit"),
    *("PagedAdamW32bit", "PagedAdamW", "Adam8bit", "Lion", "Lion8bit", "PagedLion8bit", "NAdam"),
    *("FusedAdam", "DeepSpeedCPUAdam", "RAdam", "Adadelta", "LBFGS", "DummyOptim", "GaLoreAdamW"),
    *("Muon", "Lamb", "AdamWScheduleFree", "SparseAdam", "Adamax", "ASGD", "CPUAdam", "FusedLAMB"),
    *("AdamW32bit", "Adam32bit", "PagedLion32bit", "Lion32bit", "Adafactor8bit"),
    *("AdEMAMix", "SOAP", "Sophia", "SophiaG", "Prodigy", "LOMO", "AdaLomo", "GaLoreAdamW8bit"),
)
LENGTHS = (
    *("max_length", "max_seq_length", "max_seq_len", "seq_length", "seq_len", "model_max_length"),
    *("block_size", "cutoff_len", "max_len", "max_sequence_length", "sequence_length"),
)
DATA_MODULES = ("datasets",)
DATA_CLASS = re.compile(
    r"(load_dataset|load_from_disk|concatenate_datasets|interleave_datasets|DataLoader"
    r"|ConstantLengthDataset|TextDataset|\w*DataCollator\w*|default_data_collator|read_csv|Dataset"
    r"|DatasetDict|TensorDataset|DistributedSampler|RandomSampler|SequentialSampler|random_split|Subset)"
)
FREE_TORCH = re.compile(
    r"torch\.(manual_seed|device|cuda\.(manual_seed(_all)?|set_device|empty_cache|synchronize"
    r"|is_available|device_count|current_device|get_device_name|get_device_capability|memory\w*"
    r"|max_memory\w*|mem_get_info|reset_\w+|get_device_properties|is_bf16_supported|Event|Stream"
    r"|ipc_collect)|no_grad|inference_mode"
    r"|enable_grad|distributed\.\w+|set_num_threads|utils\.data\.\w+|backends\.\w+(\.\w+)*|save|load"
    r"|tensor|zeros|ones|arange|full|randn|rand|randint|Generator|cat|stack|argmax|long|LongTensor"
    r"|set_float32_matmul_precision|nn\.functional\.\w+|nn\.utils\.rnn\.pad_sequence|sum|mean|exp|where"
    r"|log|sqrt|abs|max|min|topk|softmax|sigmoid|nn\.CrossEntropyLoss|nn\.MSELoss|nn\.BCE\w+|is_tensor"
    r"|profiler\.\w+|set_printoptions|optim\.lr_scheduler\.\w+|get_default_dtype|FloatTensor|eq|ne|all"
    r"|any|numel|multinomial|clamp|masked_select|full_like|zeros_like|ones_like|isnan|sort|einsum|bmm"
    r"|from_numpy|as_tensor|cumsum|nonzero|unique|triu|tril|is_floating_point|nn\.init\.\w+|BoolTensor)"
)


# Functions of files that are not at hand, whose names say that they read and report.
REPORTS = re.compile(
    r"(print|log|show|count|save|plot|dump|report|export|monitor|display|upload|write)_\w+"
    r"|find_all_linear_\w+|get_\w*(state|parameters|params|size|memory|names|count|metrics)\w*"
    r"|\w+_(info|summary|stats|report)|set_seed|seed_everything|setup_logg\w+|init_(wandb|logg\w+)"
    r"|set_random_seed|fix_seed|login|main_process_first|parse_args|get_logger"
)


def call_library(world: World, called: Imported, arguments: Arguments) -> Any:
    """The value of a call of a library."""
    name, owner = called.last, called.path.rpartition(".")[0].rpartition(".")[2]
    if name in ("from_pretrained", "from_config"):
        return _load(world, owner, name, arguments)
    if name in HANDLERS:
        return HANDLERS[name](world, called, arguments)
    made = _construct(world, called, arguments)
    if made is not UNKNOWN:
        return made
    return other_call(world, called, arguments)


def _construct(world: World, called: Imported, arguments: Arguments) -> Any:
    """An object of a class whose name says what it is."""
    name = called.last
    if ARGUMENT_CLASS.fullmatch(name):
        return make_arguments(world, name, arguments)
    if name.endswith("Trainer") and name[:1].isupper():
        return make_trainer(world, name, called, arguments)
    if ADAPTER_CLASS.fullmatch(name):
        return world.make(_thing("peft", name, arguments))
    if name in OPTIMIZERS:
        honour(world, arguments)
        return world.make(_thing("optimizer", called.path, arguments))
    if OTHER_QUANTIZATION.fullmatch(name):
        limit(world, arguments, "this quantization of a base model is not modelled")
        return _thing("other", name, arguments)
    if MODEL_CLASS.fullmatch(name):
        return _from_config(world, name, arguments)
    if DATA_CLASS.fullmatch(name) or called.package in DATA_MODULES:
        return _data(world, name, arguments)
    if TOKENIZER_CLASS.fullmatch(name):
        return _thing("tokenizer", name, arguments)
    if name.endswith("Config") and called.package in ("transformers", "peft"):
        return world.make(_thing("config", name, arguments))
    return UNKNOWN


def _thing(kind: str, name: str, arguments: Arguments) -> Thing:
    """An object with the arguments that it is made of."""
    values = dict(arguments.named)
    values |= {f"[{place}]": one for place, one in enumerate(arguments.positional)}
    if arguments.is_open:
        values["**"] = UNKNOWN
    lines = {**arguments.lines, **{f"[{i}]": one for i, one in enumerate(arguments.places)}}
    return Thing(kind=kind, name=name, line=arguments.line, values=values, lines=lines)


def make_arguments(world: World, name: str, arguments: Arguments) -> Thing:
    """TrainingArguments, SFTConfig and so on; the first place is output_dir."""
    thing = _thing("arguments", name, arguments)
    if "[0]" in thing.values:
        thing.values["output_dir"] = thing.values.pop("[0]")
    return world.make(thing)


def make_trainer(world: World, name: str, called: Any, arguments: Arguments) -> Thing:
    """A trainer: its places are model and args (trainer.py, sft_trainer.py __init__)."""
    thing = _thing("trainer", name, arguments)
    thing.values["path"] = getattr(called, "path", name)
    names = ("model", "ref_model", "args") if name == "DPOTrainer" else ("model", "args")
    for place, key in enumerate(names):
        if f"[{place}]" in thing.values:
            thing.values[key] = thing.values.pop(f"[{place}]")
            thing.lines[key] = thing.lines[f"[{place}]"]
    initial = thing.values.get("model_init")
    if isinstance(initial, Function):
        thing.values["model"] = world.follow(initial, Arguments())
    callbacks = thing.values.get("callbacks")
    for one in callbacks if isinstance(callbacks, list) else ():
        _follow_callback(world, one, thing.values.get("model", UNKNOWN))
    return world.make(thing)


def _follow_callback(world: World, callback: Any, model: Any) -> None:
    """The methods of a callback of the script, which get the model."""
    made = callback.values.get("(class)") if isinstance(callback, Thing) else None
    if not isinstance(made, ScriptClass):
        return
    for node in made.node.body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("on_"):
            method = Function(node, made.scope, callback)
            world.follow(method, Arguments(named={"model": model}))


# Models.


def _load(world: Any, owner: str, name: str, arguments: Arguments) -> Any:
    """from_pretrained and from_config of a class."""
    if TOKENIZER_CLASS.fullmatch(owner):
        note_lengths(world, arguments)
        world.note(arguments, "texts and their tokens are on the host", FREE)
        return _thing("tokenizer", owner, arguments)
    if owner in ("PeftModel", "PeftModelForCausalLM"):
        return _load_adapter(world, arguments)
    if owner.startswith("Fast") and name == "from_pretrained":  # of Unsloth
        return (_from_pretrained(world, owner, arguments), _thing("tokenizer", owner, arguments))
    if MODEL_CLASS.fullmatch(owner) or owner.endswith(("Model", "LM")):
        if name == "from_config":
            return _from_config(world, owner, arguments)
        return _from_pretrained(world, owner, arguments)
    if owner == "GenerationConfig":
        return _thing("data", owner, arguments)
    if owner in ("PeftConfig", "LoraConfig"):
        return world.make(_thing("peft", owner, arguments))
    if owner.endswith("Config"):
        thing = _thing("config", owner, arguments)
        thing.values["source"] = arguments.get("pretrained_model_name_or_path", 0, UNKNOWN)
        thing.values.pop("[0]", None)
        return world.make(thing)
    return other_call(world, Imported(f"{owner}.{name}"), arguments)


def _from_pretrained(world: World, owner: str, arguments: Arguments) -> Thing:
    thing = _thing("model", owner, arguments)
    place = thing.values.pop("[0]", UNKNOWN)
    named = NAMES[0] in thing.values
    thing.values["source"] = thing.values.pop(NAMES[0], place)
    thing.lines["source"] = thing.lines.get(NAMES[0] if named else "[0]", arguments.line)
    if "model_name" in thing.values:  # Unsloth's name of it
        thing.values["source"] = thing.values.pop("model_name")
        thing.lines["source"] = thing.lines.get("model_name", arguments.line)
    left = (*NAMES, "model_name")
    thing.values["load"] = [key for key in arguments.named if key not in left]
    quantization = thing.values.get("quantization_config")
    if isinstance(quantization, Thing) and quantization.kind == "quantization":
        thing.values["quantization"] = quantization
    for bits in ("load_in_4bit", "load_in_8bit"):
        if thing.values.get(bits) is True and not thing.values.get("quantization"):
            made = Thing(kind="quantization", line=arguments.line, values={bits: True})
            thing.values["quantization"] = made
    return world.make(thing)


NAMES = ("pretrained_model_name_or_path",)


def _load_adapter(world: World, arguments: Arguments) -> Any:
    """PeftModel.from_pretrained(model, path): adapters of a checkpoint."""
    model = arguments.get("model", 0)
    if not isinstance(model, Thing) or model.kind != "model":
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
        limit(world, arguments, "an adapter that is not trained is added", saves=False)
    return model


def _from_config(world: World, owner: str, arguments: Arguments) -> Thing:
    """A model with new weights, in float32 (modeling_utils.py _from_config)."""
    thing = _thing("model", owner, arguments)
    config = thing.values.pop("[0]", thing.values.get("config", UNKNOWN))
    thing.values["config"], thing.values["new"] = config, True
    if isinstance(config, Thing):
        thing.values["source"] = config.values.get("source", UNKNOWN)
    thing.values["load"] = [key for key in arguments.named if key != "config"]
    return world.make(thing)


def _models(arguments: Arguments) -> list[Thing]:
    return [one for one in arguments.every() if isinstance(one, Thing) and one.kind == "model"]


def _get_peft_model(world: World, called: Imported, arguments: Arguments) -> Any:
    """get_peft_model(model, config): the base is frozen, adapters are trained."""
    model, config = arguments.get("model", 0), arguments.get("peft_config", 1)
    if not isinstance(model, Thing):
        return UNKNOWN
    if isinstance(config, Thing) and config.kind == "peft":
        model.values["peft"] = config
        honour(world, arguments)
    elif called.path.rpartition(".")[0].rpartition(".")[2].startswith("Fast"):  # of Unsloth
        model.values["peft"] = _thing("peft", "LoraConfig", arguments)
        model.values["peft"].values.pop("[0]", None)
        honour(world, arguments)
    else:
        limit(world, arguments, "the adapter's configuration is not shown")
    if arguments.get("autocast_adapter_dtype", None, True) is False:
        limit(world, arguments, "adapters in the dtype of the base", adds=False)
    return model


def _prepare_kbit(world: World, called: Imported, arguments: Arguments) -> Any:
    """prepare_model_for_kbit_training and its older names (peft utils/other.py): the base is
    frozen, what is not quantized becomes fp32, and checkpointing is on.
    """
    model = arguments.get("model", 0)
    if not isinstance(model, Thing):
        return UNKNOWN
    model.values["prepared"] = arguments.line
    world.seen(arguments.line, arguments.text, HONOURED, "", more=arguments.more)
    checkpointing = arguments.get("use_gradient_checkpointing", 1, True)
    if checkpointing is UNKNOWN:
        limit(world, arguments, "the script computes use_gradient_checkpointing when it runs")
    if checkpointing and model.values.get("quantization"):
        settings = arguments.get("gradient_checkpointing_kwargs", 2)
        named = {"gradient_checkpointing_kwargs": settings} if settings else {}
        enable_checkpointing(
            world, model, Arguments(named=named, line=arguments.line, text=arguments.text)
        )
    return model


def _compile(world: World, called: Imported, arguments: Arguments) -> Any:
    models = _models(arguments)
    if not models:
        return arguments.positional[0] if arguments.positional else UNKNOWN
    if any(one.values.get("model") is models[0] for one in world.things("trainer")):
        why = "the trainer holds the model as it was before"
        world.seen(arguments.line, arguments.text, FREE, why)
        return models[0]
    return compile_model(world, models[0], arguments)


def _wrap(world: World, called: Imported, arguments: Arguments) -> Any:
    """DistributedDataParallel, FullyShardedDataParallel, DataParallel by hand."""
    models = _models(arguments)
    if models and called.last in ("DistributedDataParallel", "DDP"):
        honour(world, arguments)
    else:
        limit(world, arguments, "this wrapping by hand is not modelled")
    return models[0] if models else UNKNOWN


def _initialize(world: World, called: Imported, arguments: Arguments) -> Any:
    """deepspeed.initialize(model=, config=): an engine, an optimizer and so on."""
    if called.package != "deepspeed":
        return other_call(world, called, arguments)
    models = _models(arguments)
    config = arguments.get("config", None, arguments.get("config_params"))
    if isinstance(config, str):
        config = world.data(config)
    thing = _thing("engine", "deepspeed", arguments)
    thing.values["config"], thing.model = config, models[0] if models else None
    world.make(thing)
    limit(world, arguments, "DeepSpeed started by hand is not read")
    return [models[0] if models else UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN]


def _quantization(world: World, called: Imported, arguments: Arguments) -> Thing:
    return world.make(_thing("quantization", "BitsAndBytesConfig", arguments))


def _accelerator(world: World, called: Imported, arguments: Arguments) -> Thing:
    honour(world, arguments)
    return world.make(_thing("accelerator", "Accelerator", arguments))


def _plugin(world: World, called: Imported, arguments: Arguments) -> Thing:
    return _thing("plugin", called.last, arguments)


def _chat_format(world: World, called: Imported, arguments: Arguments) -> Any:
    """trl.setup_chat_format(model, tokenizer): two tokens more (trl models/utils.py)."""
    models = _models(arguments)
    if models:
        models[0].values["resized"] = arguments
    return [*arguments.positional[:2]] if len(arguments.positional) > 1 else UNKNOWN


def _liger(world: World, called: Imported, arguments: Arguments) -> Any:
    """apply_liger_kernel_to_llama() and its kind, before the model is loaded."""
    limit(world, arguments, "Liger's kernels applied by hand; use_liger_kernel=true is modelled")
    return UNKNOWN


def _downloaded(world: World, called: Imported, arguments: Arguments) -> Any:
    """A download's folder is named as the model is."""
    return arguments.get("repo_id", 0, arguments.get("model_id", 0, UNKNOWN))


def _clip(world: World, called: Imported, arguments: Arguments) -> Any:
    for one in arguments.every():
        if isinstance(one, Thing) and one.model is not None:
            one.model.values["clipped"] = True
        elif isinstance(one, Thing) and one.kind == "model":
            one.values["clipped"] = True
    account(world, arguments, row("function", "clip_grad_norm_"))
    return UNKNOWN


HANDLERS: Mapping[str, Handler] = {
    "get_peft_model": _get_peft_model,
    "prepare_model_for_kbit_training": _prepare_kbit,
    "prepare_model_for_int8_training": _prepare_kbit,
    "prepare_model_for_training": _prepare_kbit,
    "compile": _compile,
    "BitsAndBytesConfig": _quantization,
    "DistributedDataParallel": _wrap,
    "DDP": _wrap,
    "FullyShardedDataParallel": _wrap,
    "FSDP": _wrap,
    "DataParallel": _wrap,
    "fully_shard": _wrap,
    "initialize": _initialize,
    "Accelerator": _accelerator,
    "DeepSpeedPlugin": _plugin,
    "FullyShardedDataParallelPlugin": _plugin,
    "snapshot_download": _downloaded,
    "setup_chat_format": _chat_format,
    "clone_chat_template": _chat_format,
    "clip_grad_norm_": _clip,
    "apply_liger_kernel_to_llama": _liger,
    "apply_liger_kernel_to_qwen2": _liger,
    "apply_liger_kernel_to_mistral": _liger,
}


# Data, and calls that nothing above knows.


def _data(world: Any, name: str, arguments: Arguments) -> Thing:
    """Data on the host; a length that it is cut to is noted."""
    note_lengths(world, arguments)
    kind = "loader" if name == "DataLoader" else "data"
    thing = _thing(kind, name, arguments)
    look_through(world, arguments)
    world.note(arguments, "texts and their tokens are on the host", FREE)
    return world.make(thing)


def note_lengths(world: Any, arguments: Arguments) -> None:
    """Note the tokens to which a call cuts sequences."""
    for name in LENGTHS:
        value = arguments.named.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 10**9:
            world.found.lengths[arguments.lines.get(name, arguments.line)] = value


def look_through(world: World, arguments: Arguments) -> None:
    """Follow functions that are handed to data, such as that of `map`, once each."""
    for one in arguments.every():
        if isinstance(one, Function):
            world.follow(one, Arguments(is_open=False))


def other_call(world: Any, called: Any, arguments: Arguments) -> Any:
    """A call of something that is not in a table: it matters where it gets a model or a trainer,
    or where it is called for what it changes elsewhere.
    """
    path = called.path if isinstance(called, Imported) else ""
    name = path.rpartition(".")[2]
    note_lengths(world, arguments)
    touched = [one for one in arguments.every() if isinstance(one, Thing) and one.kind in TRACKED]
    if touched:
        known = row("function", name)
        if known is None and REPORTS.fullmatch(name):
            world.seen(arguments.line, arguments.text, FREE, "its name says that it reports")
            return UNKNOWN
        if known is None and (FREE_TORCH.fullmatch(path) or is_plain_package(path.partition(".")[0])):
            world.seen(arguments.line, arguments.text, FREE, "it reads the object")
        else:
            account(world, arguments, known)
        models = [one for one in touched if one.kind in ("model", "part")]
        return models[0] if models and known is None and len(touched) == 1 else UNKNOWN
    outputs = [one for one in arguments.every() if isinstance(one, Thing) and one.kind == "output"]
    if outputs:
        why = "a loss of one's own may keep other tensors than the model's"
        limit(world, arguments, why)
        outputs[0].values["own"] = True
        return outputs[0]
    if any(isinstance(one, Thing) and one.kind in OPTIONS for one in arguments.every()):
        if path and not is_plain_package(path.partition(".")[0]) and called.package not in KNOWN:
            world.found.facts["handed on"] = arguments
    look_through(world, arguments)
    if path and not is_plain_package(path.partition(".")[0]) and called.package not in KNOWN:
        if MAKES.search(name):
            why = "not understood: its code is not at hand"
            world.seen(arguments.line, arguments.text, UNCLEAR, why, more=arguments.more)
        else:
            why = "it gets no object that takes memory"
            world.seen(arguments.line, arguments.text, FREE, why, more=arguments.more)
    return UNKNOWN


# Names of code that is not at hand which say that it makes or changes something on the GPU.
MAKES = re.compile(
    r"(?i)model|policy|network|accelerator|optim|trainer|lora|peft|quant|deepspeed|fsdp|parallel"
)


OPTIONS = ("namespace", "arguments")
KNOWN = ("transformers", "peft", "trl", "accelerate", "torch", "builtins", "?")


def changes_elsewhere(called: Any) -> bool:
    """Whether a call without a result could change what libraries do: one of a package that is
    not known, such as a function that replaces a model's attention.
    """
    if not isinstance(called, Imported):
        return False
    package = called.package
    if REPORTS.fullmatch(called.last):
        return False
    if package in ("transformers", "peft", "trl", "accelerate", "builtins", ""):
        return "patch" in called.last or "replace" in called.last
    return not is_plain_package(package) and not FREE_TORCH.fullmatch(called.path)
