"""Reads Axolotl's files and commands: settings become a `program` of transformers or TRL, and keys
of the run file where Axolotl adds something of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from ...ledger import frameworks
from ...runfile.text.errors import InputError, quoted
from ..reading.command import Command
from ..reading.keys import sort_keys
from ..reading.named_files import NamedFiles
from ..reading.reading import Reading, Section
from ..translation.arguments import OFF, REFUSED, argument_table, argument_values, tables
from .adapters import add_adapters
from .batches import add_batch, add_evaluation
from .command import COMMAND, file_and_options, launched
from .draft import Draft, mapping
from .launch import FOLDER, add_launch
from .loading import (
    add_attention,
    add_compile,
    add_frozen,
    add_placement,
    add_precision,
    add_recompute,
)
from .losses import add_losses
from .optimizer import add_optimizer
from .trainers import choose_trainer

TITLE = "Axolotl"
PINNED = "transformers 5.14.1 and TRL 1.8.0, which Axolotl pins, are treated as the modelled ones"
# Other names of the same key (utils/schemas/deprecated.py RemappedParameters).
SAME: dict[str, str] = tables(__file__)["same"]
# Keys of a model's configuration that change no tensor.
FREE_CONFIG = ("rope_scaling", "rope_theta", "rope_parameters", "max_position_embeddings")
SCORES = ("SequenceClassification", "TokenClassification")


def read_command(command: Command) -> Reading:
    """What `axolotl train FILE ...` means, and `accelerate launch -m axolotl.cli.train FILE`."""
    command, words = launched(command)
    given = file_and_options(words)
    data = mapping(command.files.data(given.file, "axolotl train"), given.file)
    if given.num_processes is not None:
        command = replace(command, num_gpus=given.num_processes)
    reading = read_settings(given.changed(data), command)
    sort_keys(reading, argument_table(COMMAND, FOLDER), given.own(), "--")
    reading.problems += given.problems
    return reading


def read_data(data: Mapping[str, Any], files: NamedFiles) -> Reading:
    """What an Axolotl file means when `axolotl train` starts it."""
    return read_settings(data, Command(words=(), files=files))


def read_settings(data: Mapping[str, Any], command: Command) -> Reading:
    """What settings mean with what the command says: its files, GPUs and launcher."""
    reading = Reading(tool=TITLE, version=frameworks.AXOLOTL.version)
    draft = Draft(reading=reading, cfg=_settings(data, reading), num_gpus=command.num_gpus)
    reading.assumed.append(PINNED)
    _add_model(draft)
    add_precision(draft)
    attention = add_attention(draft)
    add_batch(draft, attention)
    add_optimizer(draft)
    add_recompute(draft)
    add_frozen(draft)
    add_adapters(draft)
    add_losses(draft)
    add_launch(draft, command.files)
    _add_accelerate(draft, command)
    add_placement(draft, attention)
    choose_trainer(draft)
    add_compile(draft)
    add_evaluation(draft, attention)
    reading.run |= _sections(draft)
    return reading


def _settings(data: Mapping[str, Any], reading: Reading) -> dict[str, Any]:
    """Every honoured key with its value, or Axolotl's default."""
    table = argument_table("keys", FOLDER)
    given: dict[str, Any] = {}
    for name, value in data.items():
        row = table.get(str(name))
        off = row is not None and row.effect == REFUSED and row.default in OFF and value in OFF
        given[str(name)] = row.default if row is not None and off else value
    kept = sort_keys(reading, table, given)
    for name, meant in SAME.items():
        if name in kept:
            kept[meant] = kept.pop(name)
    return argument_values(table, kept)


def _add_model(draft: Draft) -> None:
    name = draft.get("base_model")
    if not isinstance(name, str) or not name:
        raise InputError(f"base_model={quoted(name)} must be the name of a model")
    draft.reading.run["model"] = {"name": name}
    if draft.get("revision_of_model"):
        draft.reading.run["model"]["revision"] = str(draft.get("revision_of_model"))
    for key, value in mapping(draft.get("overrides_of_model_config"), "model_config").items():
        if key == "output_router_logits" and value:
            why = "the router's logits of all layers, and their loss, are not counted"
            draft.limit(f"model_config.{key}", why, "more", value=value)
        elif key not in FREE_CONFIG and value:
            why = "a change of the model's configuration is not modelled; give a config.json"
            draft.limit(f"model_config.{key}", why, value=value)
    kind = str(draft.get("type_of_model") or "")
    if any(word in kind for word in SCORES) and not draft.flag("reward_model"):
        why = "a head with few outputs in the place of logits is not modelled"
        draft.limit("model_type", why, "less", value=kind)
    if draft.get("processor_type"):
        why = "images, sounds and chats are not cut to sequence_len, and not counted"
        draft.limit("processor_type", why, "more")
    if draft.get("model_quantization_config"):
        _add_stored_format(draft)


def _add_stored_format(draft: Draft) -> None:
    """Mxfp4Config with dequantize loads 16-bit weights; other formats stay as they are stored."""
    config = mapping(
        draft.get("model_quantization_config_kwargs"), "model_quantization_config_kwargs"
    )
    if not config.get("dequantize"):
        why = "weights in the checkpoint's own format are not modelled; the estimate has 16 bits"
        draft.limit("model_quantization_config", why, "less")


def _add_accelerate(draft: Draft, command: Command) -> None:
    """Accelerate's own FSDP or DeepSpeed, where the file has none."""
    kind = str((command.accelerate or {}).get("distributed_type", "")).upper()
    if kind in ("FSDP", "DEEPSPEED") and not draft.launch:
        draft.launch["accelerate"] = dict(command.accelerate or {})


def _sections(draft: Draft) -> Section:
    """The sections of a run file, without the empty ones."""
    program: Section = {"tool": draft.tool, "args": draft.args, "load": draft.load}
    program |= {"peft": draft.peft} if draft.peft is not None else {}
    program |= {"quantization": draft.quantization} if draft.quantization else {}
    program |= {"data": draft.data, **draft.launch}
    run: Section = {"program": program}
    run |= {"training": draft.training} if draft.training else {}
    run |= {"engine": draft.engine} if draft.engine else {}
    run |= {"hardware": {"num_gpus": draft.num_gpus}} if draft.num_gpus else {}
    return run
