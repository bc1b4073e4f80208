"""Reads commands and files of LightningCLI (lightning 2.6.6 pytorch/cli.py): `python main.py fit
--config FILE --trainer.devices 8 --model.model_name NAME`.

Trainer's arguments mean what Trainer says. Those of the module and of the data are the user's own:
the model's name, the batch and the length are taken by the usual names, and the rest is named.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...ledger.frameworks import LIGHTNING
from ...runfile.text.errors import InputError, quoted
from ..reading.command import Command
from ..reading.keys import sort_keys
from ..reading.named_files import NamedFiles
from ..reading.options import parsed_value
from ..reading.reading import Reading, Section
from ..translation.arguments import argument_table, tables

TOOL = "Lightning"
TABLE = argument_table("lightning/arguments")
TABLES = tables(__file__)
TRAINER, MODULE, OWN = "trainer", "class_path", ("model", "data")
STRATEGIES: Mapping[str, str] = TABLES["strategies"]
# The usual names of a module's arguments, by what they mean.
NAMES: Mapping[str, list[str]] = TABLES["names"]
OURS = ("batch_size", "gradient_checkpointing", "fused")  # arguments of the module in the table


def read_command(command: Command) -> Reading:
    """`fit`, with files whose keys the options behind them change."""
    given: Section = {}
    for name, value in _options(command.words[2:]):
        if name in ("config", "c"):
            data = command.files.data(str(value), "--config")
            if not isinstance(data, Mapping):
                raise InputError(f"--config {value}: a file of LightningCLI has keys and values")
            given |= _flat(data)
        else:
            given[name] = value
    return _reading(given, command)


def read_data(data: Mapping[str, Any], files: NamedFiles) -> Reading:
    """A file of LightningCLI."""
    return _reading(_flat(data), Command(words=(), files=files))


def _options(words: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Each option with its value; one without a value is true."""
    pending = list(words)
    while pending:
        word = pending.pop(0)
        if not word.startswith("-"):
            raise InputError(f"{quoted(word)} is not an option of LightningCLI; write --key value")
        name, sign, text = word.lstrip("-").partition("=")
        if not sign and pending and not pending[0].startswith("--"):
            sign, text = "=", pending.pop(0)
        yield name, parsed_value(text) if sign else True


def _flat(data: Mapping[str, Any], prefix: str = "") -> Section:
    """Keys joined with dots, the arguments of a class without init_args between."""
    flat: Section = {}
    for key, value in data.items():
        inner = prefix if key == "init_args" else f"{prefix}{key}."
        keep = prefix == f"{TRAINER}." and key in ("strategy", "callbacks", "logger", "plugins")
        if isinstance(value, Mapping) and not keep:
            flat |= _flat(value, inner)
        else:
            flat[inner.removesuffix(".")] = value
    return flat


def _reading(given: Section, command: Command) -> Reading:
    reading = Reading(tool=TOOL, version=LIGHTNING.version)
    trainer = {k.partition(".")[2]: v for k, v in given.items() if k.startswith(f"{TRAINER}.")}
    own = {k.replace(".init_args.", "."): v for k, v in given.items() if k.startswith(OWN)}
    found = {what: _named(own, names) for what, names in NAMES.items()}
    if "strategy" in trainer:
        trainer["strategy"] = _strategy(trainer["strategy"])
    kept = sort_keys(
        reading, {k: v for k, v in TABLE.items() if k not in OURS}, trainer, "trainer."
    )
    for what in OURS:
        if one := found.get(what):
            kept[what] = one[1]
    gpus = _gpus(trainer) or command.num_gpus
    if found["model"] is not None:
        reading.run["model"] = {"name": str(found["model"][1])}
    reading.run["program"] = {"tool": "lightning", "args": kept}
    if found["length"] is not None:
        reading.run["program"]["data"] = {"seq_len": found["length"][1]}
    reading.run["hardware"] = {"num_gpus": gpus} if gpus else {}
    known = {one[0] for one in found.values() if one}
    reading.keys |= dict.fromkeys(known, "memory")
    rest = sorted(own.keys() - known)
    if rest:
        why = "are the module's own; what they mean for memory is not known"
        reading.limit(", ".join(rest[:3]) + ("..." if len(rest) > 3 else ""), why)
    return reading


def _named(own: Mapping[str, Any], names: Sequence[str]) -> tuple[str, Any] | None:
    """The first of the names that an argument of the module or the data has, and its value."""
    for name in names:
        for key, value in own.items():
            if key.rpartition(".")[2] == name and value is not None:
                return key, value
    return None


def _gpus(trainer: Mapping[str, Any]) -> int | None:
    """GPUs of all nodes; None where Lightning takes what is there."""
    devices = trainer.get("devices")
    count = len(devices) if isinstance(devices, list) else devices
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        return None
    nodes = trainer.get("num_nodes", 1)
    return count * (nodes if isinstance(nodes, int) and nodes > 0 else 1)


def _strategy(value: Any) -> Any:
    """A strategy by its class, as a name with the arguments of the class."""
    if not isinstance(value, Mapping) or MODULE not in value:
        return value
    arguments = dict(value.get("init_args") or {})
    name = str(value[MODULE]).rpartition(".")[2]
    known = STRATEGIES.get(name, name)
    if known == "deepspeed":
        known = f"deepspeed_stage_{arguments.pop('stage', 2)}"
    return {"name": known, **arguments} if arguments else known
