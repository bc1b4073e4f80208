"""DeepSpeed-Chat's main.py: its own loop around DeepSpeed (DeepSpeedExamples 45b4b71)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...runfile.text.errors import InputError, quoted
from ..reading.command import Command
from ..reading.keys import sort_keys
from ..reading.options import option_syntax, parse_options
from ..reading.reading import Reading
from ..translation.arguments import argument_table, argument_values, tables

SCRIPT, FLAG, TABLE, OWN = "main.py", "--deepspeed", "deepspeed_chat", Path(__file__).parent
TITLE = "DeepSpeed-Chat"
# Arguments that only a later step has, and how that step is named.
LATER: dict[str, str] = tables(__file__)["later"]
PRECISIONS = ("fp16", "bf16")


def is_deepspeed_chat(command: Command) -> bool:
    """Whether a command is one of DeepSpeed-Chat's: `main.py` with --deepspeed as a flag."""
    words = command.words
    if command.program != SCRIPT or FLAG not in words:
        return False
    after = words[words.index(FLAG) + 1 :][:1]
    return not after or after[0].startswith("-")


def read_deepspeed_chat(command: Command) -> Reading:
    """Step 1, supervised fine-tuning, as a run under DeepSpeed; later steps are refused."""
    table = argument_table(TABLE, OWN)
    options = parse_options(TITLE, command.words[1:], table, option_syntax(TABLE, OWN))
    reading = Reading(tool=TITLE, version="45b4b71", problems=options.problems)
    kept = sort_keys(reading, table, options.values, "--")
    reading.run["hardware"] = command.hardware
    later = next((title for name, title in LATER.items() if name in options.values), None)
    if later is not None:
        reading.run["program"] = {"tool": f"{TITLE.lower()} {later}"}
        return reading
    reading.assumed.append(
        f"{SCRIPT} is {TITLE}'s step 1: nothing in the command is of a later one"
    )
    values = argument_values(table, kept)
    if values["model_name_or_path"] is not None:
        reading.run["model"] = {"name": values["model_name_or_path"]}
    reading.run["training"] = _training(values)
    reading.run["engine"] = _engine(values)
    return reading


def _training(values: dict[str, Any]) -> dict[str, Any]:
    """dschat/utils/utils.py and step1 main.py: FusedAdam, gradients clipped to 1."""
    if values["dtype"] not in PRECISIONS:
        raise InputError(f"--dtype {quoted(values['dtype'])} must be 'fp16' or 'bf16'")
    training = {
        "batch_size": values["per_device_train_batch_size"],
        "seq_len": values["max_seq_len"],
        "gradient_accumulation_steps": values["gradient_accumulation_steps"],
        "precision": f"{values['dtype']}_mixed",
        "optimizer": "adamw",
        "gradient_clipping": 1.0,
    }
    if values["gradient_checkpointing"]:
        training["activation_checkpointing"] = "full"
    return training


def _engine(values: dict[str, Any]) -> dict[str, Any]:
    """dschat/utils/ds_utils.py get_train_ds_config."""
    stage = values["zero_stage"]
    engine: dict[str, Any] = {"type": "deepspeed", "zero_stage": stage}
    if stage:
        engine["overlap_comm"] = True
    if stage == 3:
        engine |= {
            "stage3_param_persistence_threshold": 10_000,
            "stage3_max_live_parameters": 30_000_000,
            "stage3_prefetch_bucket_size": 30_000_000,
        }
    if values["offload"]:
        engine["offload_optimizer"] = "cpu"
        engine |= {"offload_param": "cpu"} if stage == 3 else {}
    return engine
