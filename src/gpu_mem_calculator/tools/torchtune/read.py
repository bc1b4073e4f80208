"""Reads torchtune's commands and YAML files (torchtune 0.6.1).

`tune run [options of torchrun] RECIPE --config NAME-OR-FILE key=value ...` (_cli/run.py,
config/_utils.py _merge_yaml_and_cli_args). A configuration that torchtune brings along is known by
its name. Weights, gradients and optimizer states have the `dtype`, without autocast; a recipe for
several devices shards each layer by FSDP 2 (training/_distributed.py shard_model).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from ...catalog.model_names import spelled
from ...ledger.frameworks import TORCHTUNE
from ...runfile.text.errors import InputError, nearest, quoted
from ...runfile.text.yaml_text import parse_yaml
from ..launchers.launch import without_torchrun
from ..reading.command import Command
from ..reading.keys import by_new_names, sort_keys
from ..reading.named_files import NamedFiles
from ..reading.reading import Reading, Section
from ..releases.tool_at import tool_at
from ..translation.arguments import argument_data, argument_table, renamed, tables

TOOL, FOLDER = "torchtune", Path(__file__).parent
OLDEST = "0.6.0"  # the first release whose code was read
TABLE = argument_table("arguments", FOLDER)
TABLES = tables(__file__)
MODELS: Mapping[str, str] = TABLES["models"]
OPTIMIZERS: Mapping[str, str] = TABLES["optimizers"]
REFUSED: Mapping[str, str] = TABLES["refused"]
LETTERS: Mapping[str, str] = TABLES["letters"]
COMPONENT = "_component_"
PREFIXES = ("qlora_", "lora_", "dora_")
OUTPUT = {"output_proj": "o_proj"}
MLP = ["gate_proj", "up_proj", "down_proj"]
TORCH = ("adamw", "adam", "sgd")
JOINED = {
    **dict.fromkeys(("q_proj", "k_proj", "v_proj"), "qkv_proj"),
    **dict.fromkeys(("gate_proj", "up_proj"), "gate_up_proj"),
}
HEAD = "adapters of the output layer are not counted"
PRECISIONS = {"bf16": "bf16_pure", "fp32": "fp32", "fp16": "fp16_pure"}
LENGTH = "without it the longest sample decides"
CHUNKS = "computes logits in 8 chunks, and keeps less of them"


def read_command(command: Command) -> Reading:
    """What `tune run` starts."""
    if command.words[1:2] != ("run",):
        asked = " ".join(command.words[:2])
        raise InputError(f"{asked} starts no training; only tune run is read")
    launched = without_torchrun(replace(command, words=command.words[1:]))
    if not launched.words:
        raise InputError("tune run names no recipe; write it after its options")
    name, overrides = _config(launched.words[1:])
    left_out = {word[1:] for word in overrides if word.startswith("~")}
    given = {**_file(name, command.files), **_pairs(overrides)}
    given = {key: value for key, value in given.items() if key not in left_out}
    return _reading(given, launched.words[0], launched)


def read_data(data: Mapping[str, Any], files: NamedFiles) -> Reading:
    """A file, for the recipe that its model and the number of GPUs mean."""
    return _reading(_flat(data), "", Command(words=(), files=files))


def _config(words: Sequence[str]) -> tuple[str, list[str]]:
    """The name after --config, and the other words."""
    rest = list(words)
    for place, word in enumerate(rest):
        name, sign, value = word.partition("=")
        if name == "--config":
            if not sign and place + 1 == len(rest):
                break
            value = value if sign else rest[place + 1]
            return value, rest[:place] + rest[place + (1 if sign else 2) :]
    raise InputError("tune run needs --config, with a configuration's name or a file")


def _file(name: str, files: NamedFiles) -> Section:
    """The keys of a configuration: torchtune's own, or a file's."""
    own = argument_data("configs", FOLDER)
    plain = name.removesuffix(".yaml")
    if plain in own and not files.exists(name):
        names = {"max_seq_len": "tokenizer.max_seq_len", "packed": "dataset.packed"}
        model = ("lora_", "use_dora", "apply_lora")
        keys = {k: f"model.{k}" if k.startswith(model) else names.get(k, k) for k in own[plain]}
        keys |= {"fused": "optimizer.fused"}
        return {keys[key]: value for key, value in own[plain].items()}
    if not name.endswith((".yaml", ".yml")):
        hint = nearest(name, list(own)) or "; tune ls lists them"
        raise InputError(f"--config {name} is no configuration of torchtune{hint}")
    data = files.data(name, "--config")
    if not isinstance(data, Mapping):
        raise InputError(f"--config {name}: a file of torchtune has keys and values at its top")
    return _flat(data)


def _flat(data: Mapping[str, Any], prefix: str = "") -> Section:
    """Keys joined with dots; a component is the value of its section's own name."""
    flat: Section = {}
    for key, value in data.items():
        if key == COMPONENT:
            flat[prefix.removesuffix(".")] = value
        elif isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _pairs(words: Sequence[str]) -> Section:
    """The keys that a command sets, `key=value`."""
    given: Section = {}
    for word in words:
        key, sign, value = word.lstrip("+").partition("=")
        if not sign and not word.startswith("~"):
            raise InputError(f"{quoted(word)} must be a pair key=value")
        if sign:
            given[key.removesuffix(f".{COMPONENT}")] = parse_yaml(value) if value else None
    return given


def _reading(given: Section, recipe: str, command: Command) -> Reading:
    at = tool_at("torchtune/arguments", command.files.releases)
    reading = Reading(tool=TOOL, version=at.version(TORCHTUNE.version))
    at.begin(reading, OLDEST)
    given = by_new_names(reading, renamed("arguments", FOLDER), given)
    for part, why in REFUSED.items():
        if part in recipe.rpartition("/")[2]:
            raise InputError(f"tune run {recipe}: {why}")
    known = {name: value for name, value in given.items() if name in TABLE}
    for name in given.keys() - known.keys():
        section = name.partition(".")[0]
        if "." in name and section in TABLE:
            reading.keys[name] = "free"
        else:
            reading.assumed.append(f"{name} is read by no recipe of torchtune; it has no effect")
    kept = sort_keys(reading, TABLE, known)
    values = {name: kept.get(name, row.default) for name, row in TABLE.items()}
    kind, model = _model(values["model"])
    several = (command.num_gpus or 1) > 1 or "distributed" in recipe
    reading.run = {
        "model": {"name": model},
        "training": _training(reading, values, kind),
        "engine": _engine(values) if several else {"type": "pytorch_ddp"},
        "hardware": command.hardware,
    }
    reading.run |= at.beside(*at.idle(reading))
    reading.assumed.append("torchtune's own modules are counted as those of transformers")
    return reading


def _model(component: Any) -> tuple[str, str]:
    """What is trained (empty: all; lora_, qlora_ or dora_), and the model."""
    name = str(component or "").rpartition(".")[2]
    if not name:
        raise InputError(f"model.{COMPONENT} is missing; name torchtune's function of the model")
    kind = next((one for one in PREFIXES if name.startswith(one)), "")
    base = name.removeprefix(kind)
    row = spelled(MODELS.get(base, base))
    return kind, row["name"] if row else base


def _training(reading: Reading, values: Section, kind: str) -> Section:
    dtype = values["dtype"]
    if dtype not in PRECISIONS:
        raise InputError(f"dtype={quoted(dtype)} must be one of {', '.join(PRECISIONS)}")
    optimizer = str(values["optimizer"] or "AdamW").rpartition(".")[2]
    if optimizer not in OPTIMIZERS:
        why = f"is not modelled; it can be {', '.join(OPTIMIZERS)}"
        raise InputError(f"optimizer={quoted(optimizer)} {why}")
    training: Section = {
        "batch_size": values["batch_size"],
        "gradient_accumulation_steps": values["gradient_accumulation_steps"],
        "precision": PRECISIONS[dtype],
        "optimizer": OPTIMIZERS[optimizer],
        "gradient_clipping": values["clip_grad_norm"] or 0,
    }
    own = OPTIMIZERS[optimizer] in TORCH  # bitsandbytes' have one kernel
    if own and (values["optimizer.fused"] or values["optimizer.foreach"]):
        training["optimizer_implementation"] = "fused" if values["optimizer.fused"] else "foreach"
    if values["enable_activation_checkpointing"]:
        training |= {"activation_checkpointing": "full", "checkpoint_reentrant": False}
    if values["tokenizer.max_seq_len"]:
        training["seq_len"] = values["tokenizer.max_seq_len"]
    else:
        settle = "--set training.seq_len=TOKENS"
        reading.limit("tokenizer.max_seq_len=null", LENGTH, settle=settle)
    if "Chunked" in str(values["loss"]) or "Linear" in str(values["loss"]):
        reading.limit(f"loss={str(values['loss']).rpartition('.')[2]}", CHUNKS, "less")
    if kind:
        adapters = "fp32" if dtype == "fp32" else dtype
        training["lora"] = _lora(values, kind, adapters)
        if values["model.apply_lora_to_output"]:
            reading.limit("model.apply_lora_to_output=true", HEAD, "more")
    if kind == "qlora_":
        training |= {"quantization": "nf4", "double_quant": True}
    return training


def _lora(values: Section, kind: str, dtype: str) -> Section:
    """models/<family>/_component_builders.py: the modules that get adapters."""
    attention = values["model.lora_attn_modules"] or []
    if isinstance(attention, str):
        attention = [LETTERS[letter] for letter in attention]
    modules = [OUTPUT.get(str(one), str(one)) for one in attention]
    modules += MLP if values["model.apply_lora_to_mlp"] else []
    if "phi" in str(values["model"]):  # transformers has one matrix for each group
        modules = list(dict.fromkeys(JOINED.get(one, one) for one in modules))
    keys: Section = {"r": values["model.lora_rank"] or 8, "target_modules": modules}
    if values["model.lora_dropout"]:
        keys["dropout"] = values["model.lora_dropout"]
    if values["model.use_dora"] or kind == "dora_":
        keys["dora"] = True
    return {**keys, "adapter_dtype": dtype}


def _engine(values: Section) -> Section:
    """FSDP 2 without a policy of mixed precision."""
    engine: Section = {"type": "fsdp", "fsdp_version": 2, "sharding_strategy": "full_shard"}
    return engine | ({"cpu_offload": True} if values["fsdp_cpu_offload"] else {})
