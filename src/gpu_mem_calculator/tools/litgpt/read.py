"""Reads litgpt's commands (litgpt 0.5.13): `litgpt finetune_lora MODEL --train.micro_batch_size 4`.

A step on one device is plain; on several it is FSDP 1 with a unit for each block, which fine-tuning
checkpoints (finetune/lora.py, finetune/full.py), and pre-training shards within a node
(pretrain.py). `*-true` makes every weight and state of that dtype.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...catalog.model_names import spelled
from ...ledger.frameworks import LITGPT
from ...runfile.text.errors import InputError, nearest, quoted
from ..reading.command import Command
from ..reading.keys import sort_keys
from ..reading.options import OptionSyntax, parse_options
from ..reading.reading import Reading, Section
from ..releases.tool_at import tool_at
from ..translation.arguments import argument_table, flat_arguments

TOOL, FOLDER = "litgpt", Path(__file__).parent
OLDEST = "0.4.13"  # the first release whose code was read
TABLE = argument_table("arguments", FOLDER)
LORA, FULL, PRETRAIN = "finetune_lora", "finetune_full", "pretrain"
COMMANDS = {"finetune": LORA, LORA: LORA, FULL: FULL, PRETRAIN: PRETRAIN}
# pretrain.py setup: its own defaults.
OF_PRETRAIN = {
    "train.micro_batch_size": 4,
    "train.global_batch_size": 512,
    "train.max_norm": 1.0,
    "devices": "auto",
}
PRECISIONS = {
    "bf16-true": "bf16_pure",
    "16-true": "fp16_pure",
    "32-true": "fp32",
    "bf16-mixed": "bf16_mixed",
    "16-mixed": "fp16_mixed",
}
USUAL = "bf16-true"  # utils.py get_default_supported_precision
QUANTIZED = {"bnb.nf4": ("nf4", False), "bnb.nf4-dq": ("nf4", True)}
MODULES = {
    "lora_query": ["q_proj"],
    "lora_key": ["k_proj"],
    "lora_value": ["v_proj"],
    "lora_projection": ["o_proj"],
    "lora_mlp": ["gate_proj", "up_proj", "down_proj"],
}
SYNTAX = OptionSyntax(
    switches=frozenset(name for name, row in TABLE.items() if isinstance(row.default, bool)),
    abbreviations=False,
)


def read_command(command: Command) -> Reading:
    """What a fine-tuning or a pre-training means."""
    name = command.words[1] if len(command.words) > 1 else ""
    if name not in COMMANDS:
        hint = nearest(name, list(COMMANDS)) or f"; it can be {', '.join(COMMANDS)}"
        raise InputError(f"litgpt {name} is not read{hint}".replace("  ", " "))
    kind = COMMANDS[name]
    parsed = parse_options(TOOL, command.words[2:], TABLE, SYNTAX)
    at = tool_at("litgpt/arguments", command.files.releases)
    reading = Reading(tool=TOOL, version=at.version(LITGPT.version), problems=parsed.problems)
    at.begin(reading, OLDEST)
    given: Section = {}
    if "config" in parsed.values:
        data = command.files.data(str(parsed.values["config"]), "--config")
        given |= flat_arguments(TABLE, data) if isinstance(data, Mapping) else {}
    given |= parsed.values
    reading.problems += at.absent(given, prefix="--")
    table = at.table(TABLE)
    kept = sort_keys(reading, table, given)
    own = OF_PRETRAIN if kind == PRETRAIN else {}
    values = {key: row.default for key, row in table.items()} | own | kept
    model = [*parsed.positional, values["checkpoint_dir"] or values["model_name"]][0]
    if not isinstance(model, str):
        raise InputError(f"litgpt {name} names no model; write it after {name}")
    gpus = _gpus(values, command)
    several = (gpus or 1) > 1
    reading.run = {
        "model": {"name": _model(model)},
        "training": _training(reading, values, kind, gpus or 1, several),
        "engine": _engine(kind) if several else {"type": "pytorch_ddp"},
        "hardware": {"num_gpus": gpus} if gpus else {},
    }
    reading.run |= at.beside(*at.idle(reading))
    reading.assumed.append("litgpt's own model is counted as that of transformers")
    return reading


def _gpus(values: Mapping[str, Any], command: Command) -> int | None:
    """GPUs of all nodes; None where litgpt takes what is there."""
    devices = values["devices"]
    if isinstance(devices, int) and not isinstance(devices, bool) and devices > 0:
        return devices * int(values["num_nodes"])
    return command.num_gpus


def _model(text: str) -> str:
    """The model of a name or of a folder of checkpoints."""
    plain = text.rstrip("/").removeprefix("checkpoints/")
    row = spelled(plain.rpartition("/")[2])
    return row["name"] if row else plain


def _training(reading: Reading, values: Section, kind: str, gpus: int, several: bool) -> Section:
    precision = values["precision"] or USUAL
    if precision not in PRECISIONS:
        known = ", ".join(PRECISIONS)
        raise InputError(f"--precision {quoted(precision)} must be one of {known}")
    batch = values["train.micro_batch_size"]
    training: Section = {
        "batch_size": batch,
        "gradient_accumulation_steps": max(1, values["train.global_batch_size"] // gpus // batch),
        "precision": PRECISIONS[precision],
        "optimizer": "paged_adamw" if values["quantize"] else "adamw",
        "gradient_clipping": values["train.max_norm"] or 0,
    }
    if several and kind != PRETRAIN:
        training |= {"activation_checkpointing": "full", "checkpoint_reentrant": False}
    if values["train.max_seq_length"]:
        training["seq_len"] = values["train.max_seq_length"]
    elif kind != PRETRAIN:
        why = "without it the longest sample decides"
        settle = "--set training.seq_len=TOKENS"
        reading.limit("train.max_seq_length=null", why, settle=settle)
    if str(values["optimizer"]).rpartition(".")[2] != "AdamW":
        reading.limit(f"--optimizer={values['optimizer']}", "is counted as AdamW")
    if kind == LORA:
        _add_lora(reading, values, training, precision)
    return training


def _add_lora(reading: Reading, values: Section, training: Section, precision: str) -> None:
    """Adapters, of the dtype of all weights; the output layer gives logits in chunks."""
    modules = [one for key, names in MODULES.items() if values[key] for one in names]
    dtype = {"bf16-true": "bf16", "16-true": "fp16"}.get(precision, "fp32")
    lora: Section = {"r": values["lora_r"], "target_modules": modules, "adapter_dtype": dtype}
    if values["lora_dropout"]:
        lora["dropout"] = values["lora_dropout"]
    training["lora"] = lora
    reading.limit("chunked_cross_entropy", "logits in chunks of 128 tokens take less", "less")
    method = values["quantize"]
    if method in QUANTIZED:
        kind, double = QUANTIZED[method]
        training |= {"quantization": kind, "double_quant": double}
    elif method:
        reading.limit(f"--quantize={method}", "is not modelled; 16-bit weights are counted", "less")


def _engine(kind: str) -> Section:
    """lightning's FSDPStrategy with a unit for each block."""
    sharding = "hybrid_shard" if kind == PRETRAIN else "full_shard"
    return {"type": "fsdp", "fsdp_version": 1, "sharding_strategy": sharding}
