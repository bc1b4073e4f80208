"""How a program on top of transformers.Trainer is launched, as sections of a run file.

Parts of a trainer that are not modelled beside an engine are left out: the rest is estimated, and a
limit names each.
"""

from __future__ import annotations

from typing import Any

from ..reading.command import Command
from ..reading.keys import sort_keys
from ..reading.reading import Could, Reading
from ..trainer.accelerate import TABLE, WRAPS_LAYERS, flat_settings
from ..translation.arguments import Values, argument_table
from ..translation.tools import ONLINE

FILE = "deepspeed_config.deepspeed_config_file"
POLICY = "fsdp_config.fsdp_auto_wrap_policy"
BACKEND = "dynamo_config.dynamo_backend"
REFERENCED = ("trl.DPOTrainer", "trl.KTOTrainer")
SEVERAL = (
    "without a launcher Trainer splits each batch over the GPUs with torch's DataParallel, which "
    "is not modelled; start it with torchrun or accelerate launch"
)


def add_launch(reading: Reading, command: Command, values: Values) -> None:
    """Add what the launcher says to the `program` and `hardware` sections of a reading.

    - values: the value of every argument of the trainer, by which DeepSpeed's `auto` is completed
    """
    hardware = command.hardware
    if hardware.get("num_gpus", 1) > 1 and not command.launcher:
        reading.limit(f"{hardware['num_gpus']} GPUs", SEVERAL, "more")
        hardware["num_gpus"] = 1
    reading.run["hardware"] = {**hardware, **reading.run.get("hardware", {})}
    if command.accelerate:
        add_accelerate(reading, command, values)


def add_accelerate(reading: Reading, command: Command, values: Values) -> None:
    """Add the configuration of `accelerate launch`, with the DeepSpeed file that it names."""
    flat = flat_settings(command.accelerate or {})
    kept = sort_keys(reading, argument_table(TABLE), flat, "accelerate.")
    name = kept.pop(FILE, None)
    _set_what_is_modelled(reading, kept)
    kind = str(kept.get("distributed_type", "")).upper()
    if name is not None and kind == "DEEPSPEED":
        from .deepspeed_file import add_deepspeed_file

        data = command.files.data(str(name), FILE)
        add_deepspeed_file(reading, data, values)
    reading.run["program"]["accelerate"] = _nested(kept)


def _set_what_is_modelled(reading: Reading, kept: dict[str, Any]) -> None:
    """Replace values that are not modelled by the nearest ones, each with a limit."""
    if str(kept.get("mixed_precision", "no")).lower() == "fp8":
        why = "fp8 is not modelled; the run is estimated in bf16"
        reading.limit("accelerate.mixed_precision=fp8", why)
        kept["mixed_precision"] = "bf16"
    is_fsdp = str(kept.get("distributed_type", "")).upper() == "FSDP"
    policy = str(kept.get(POLICY, "NO_WRAP")).upper()
    if is_fsdp and policy != WRAPS_LAYERS:
        why = f"only units of one layer are modelled ({WRAPS_LAYERS}); larger ones take more"
        reading.limit(f"accelerate.fsdp_auto_wrap_policy={policy}", why, "more")
        kept.pop(POLICY, None)
    backend = str(kept.get(BACKEND, "no")).lower()
    if backend not in ("no", "inductor"):
        reading.limit(f"accelerate.dynamo_backend={backend}", "only inductor is modelled")
        kept.pop(BACKEND)


def _nested(flat: Values) -> dict[str, Any]:
    """Settings by section, as in Accelerate's YAML."""
    nested: dict[str, Any] = {}
    for path, value in flat.items():
        section, dot, key = path.rpartition(".")
        (nested.setdefault(section, {}) if dot else nested)[key] = value
    return nested


def leave_out(reading: Reading, values: Values) -> None:
    """Leave out what the trainer's engine cannot have, with a limit for each.

    - values: the value of every argument of the trainer
    """
    program = reading.run["program"]
    engine = _engine(program, values)
    tool, training = program["tool"], reading.run.setdefault("training", {})
    if engine:
        _reference(reading, program, values, engine)
        if tool in ONLINE:
            _generation(reading, program, values, engine)
    _evaluation(reading, program, values)
    if not training:
        reading.run.pop("training")


def _engine(program: Values, values: Values) -> str:
    """DeepSpeed, FSDP, or empty for one GPU and DDP."""
    kind = str((program.get("accelerate") or {}).get("distributed_type", "")).upper()
    if program.get("deepspeed") or kind == "DEEPSPEED":
        return "DeepSpeed"
    return "FSDP" if kind == "FSDP" or values.get("fsdp") else ""


def _reference(reading: Reading, program: Values, values: Values, engine: str) -> None:
    """The reference model of DPO and KTO, and of GRPO with beta."""
    tool = program["tool"]
    if tool not in REFERENCED and not (tool in ONLINE and values.get("beta")):
        return
    reading.run["training"]["reference_model"] = False
    if program.get("peft"):
        why = f"its forward pass without adapters is not modelled under {engine}, and left out"
        adds = "activations"  # a pass without gradients keeps a part of what one with them keeps
    else:
        why = f"a second copy of the weights, sharded by {engine}, is not modelled and left out"
        adds = "4*weights+activations"
    reading.limit(f"{tool}'s reference model", why, "more", adds=adds)


def _generation(reading: Reading, program: dict[str, Any], values: Values, engine: str) -> None:
    """The completions of GRPO and RLOO: only the update is estimated."""
    prompt, tokens = program["data"].get("prompt"), values.get("max_completion_length")
    if not isinstance(prompt, int) or not isinstance(tokens, int):
        return
    reading.run["training"] |= {
        "generation": None,
        "seq_len": prompt + tokens,
        "labelled_tokens": tokens,
    }
    elsewhere = values.get("use_vllm") and values.get("vllm_mode") == "server"
    why = f"generation is not modelled under {engine}; only the update is estimated"
    could: Could = "either" if elsewhere else "more"
    reading.limit(f"{program['tool']}'s completions", why, could)


def _evaluation(reading: Reading, program: dict[str, Any], values: Values) -> None:
    """An evaluation that generates, and may take more than a step."""
    runs = str(values.get("eval_strategy") or "no") != "no" or values.get("eval_on_start")
    batch, trained = values["per_device_eval_batch_size"], values["per_device_train_batch_size"]
    if not runs or program["tool"] not in ONLINE:
        return
    if isinstance(batch, int) and isinstance(trained, int) and batch > trained:
        args = program["args"]
        args.pop("eval_strategy", None)
        args.pop("eval_on_start", None)
        why = f"an evaluation of more sequences than the {trained} of a step is left out"
        # of each sequence it keeps a part of what a step keeps for backward
        adds = f"{-(-batch // trained)}*activations"
        reading.limit(f"per_device_eval_batch_size={batch}", why, "more", adds=adds)
