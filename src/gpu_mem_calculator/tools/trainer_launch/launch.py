"""How a program on top of transformers.Trainer is launched, as sections of a run file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..reading.command import Command
from ..reading.keys import sort_keys
from ..reading.reading import Limit, Reading
from ..trainer.accelerate import TABLE, WRAPS_LAYERS, flat_settings
from ..translation.arguments import argument_table
from .deepspeed_file import add_deepspeed_file

FILE = "deepspeed_config.deepspeed_config_file"
POLICY = "fsdp_config.fsdp_auto_wrap_policy"
BACKEND = "dynamo_config.dynamo_backend"
SEVERAL = (
    "without a launcher Trainer splits each batch over the GPUs with torch's DataParallel, which "
    "is not modelled; start it with torchrun or accelerate launch"
)


def add_launch(reading: Reading, command: Command, values: Mapping[str, Any]) -> None:
    """Add what the launcher says to the `program` and `hardware` sections of a reading.

    - values: the value of every argument of the trainer, by which DeepSpeed's `auto` is completed
    """
    hardware = command.hardware
    if hardware.get("num_gpus", 1) > 1 and not command.launcher:
        key = f"{hardware['num_gpus']} GPUs"
        reading.limits.append(Limit(key=key, why=SEVERAL, could="more"))
        hardware["num_gpus"] = 1
    reading.run["hardware"] = {**hardware, **reading.run.get("hardware", {})}
    if command.accelerate:
        add_accelerate(reading, command, values)


def add_accelerate(reading: Reading, command: Command, values: Mapping[str, Any]) -> None:
    """Add the configuration of `accelerate launch`, with the DeepSpeed file that it names."""
    flat = flat_settings(command.accelerate or {})
    kept = sort_keys(reading, argument_table(TABLE), flat, "accelerate.")
    name = kept.pop(FILE, None)
    _set_what_is_modelled(reading, kept)
    kind = str(kept.get("distributed_type", "")).upper()
    if name is not None and kind == "DEEPSPEED":
        data = command.files.data(str(name), FILE)
        add_deepspeed_file(reading, data, values)
    reading.run["program"]["accelerate"] = _nested(kept)


def _set_what_is_modelled(reading: Reading, kept: dict[str, Any]) -> None:
    """Replace values that are not modelled by the nearest ones, each with a limit."""
    if str(kept.get("mixed_precision", "no")).lower() == "fp8":
        why = "fp8 is not modelled; the run is estimated in bf16"
        reading.limits.append(Limit(key="accelerate.mixed_precision=fp8", why=why))
        kept["mixed_precision"] = "bf16"
    is_fsdp = str(kept.get("distributed_type", "")).upper() == "FSDP"
    policy = str(kept.get(POLICY, "NO_WRAP")).upper()
    if is_fsdp and policy != WRAPS_LAYERS:
        why = f"only units of one layer are modelled ({WRAPS_LAYERS}); larger ones take more"
        key = f"accelerate.fsdp_auto_wrap_policy={policy}"
        reading.limits.append(Limit(key=key, why=why, could="more"))
        kept.pop(POLICY, None)
    backend = str(kept.get(BACKEND, "no")).lower()
    if backend not in ("no", "inductor"):
        why = "only inductor is modelled"
        reading.limits.append(Limit(key=f"accelerate.dynamo_backend={backend}", why=why))
        kept.pop(BACKEND)


def _nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by section, as in Accelerate's YAML."""
    nested: dict[str, Any] = {}
    for path, value in flat.items():
        section, dot, key = path.rpartition(".")
        (nested.setdefault(section, {}) if dot else nested)[key] = value
    return nested
