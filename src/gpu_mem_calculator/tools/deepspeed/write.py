"""Writes a run as DeepSpeed's JSON: every option of the run file that DeepSpeed reads from there.

What the program decides is not in it: the model, its sequence and adapters, zero.Init, the stages
of a pipeline, which layers are recomputed. Nor is the learning rate, which takes no memory. Names
and rules are those of DeepSpeed 0.19.8 (runtime/config.py, runtime/zero/config.py).
"""

from __future__ import annotations

from typing import Any

from ...run.recompute import FULL
from ...run.run import FULL_DICT, Run
from ...runfile.config import RunFile
from ...runfile.resolve.resolved_run import ResolvedRun
from ...runfile.text.errors import InputError, quoted
from ...training.engines import engines
from ...training.engines.deepspeed.options import OPTIONS
from ..writing.texts import json_text
from ..writing.unsaid import program_keys
from ..writing.written import Written
from .names import CHECKPOINT_KEYS, SWAP_ELEMENTS, ZERO_KEYS, optimizer_section
from .read import run_file

FILENAME = "ds_config.json"
NVME_PATH = "/local_nvme"  # the example of DeepSpeed's documentation; users set their own path
CLIPPING = 1.0  # the norm, where a run does not give it
# Optimizers that ZeRO supports by default (runtime/zero/utils.py ZERO_SUPPORTED_OPTIMIZERS).
TESTED = ("adam", "adamw", "lion")


def write(file: RunFile, resolved: ResolvedRun) -> dict[str, Any]:
    """The data of DeepSpeed's JSON for a run of DeepSpeed or Megatron-DeepSpeed."""
    problems = [_refusal(resolved), *_swap_problems(resolved.run)]
    if any(problems):
        raise InputError(filter(None, problems))
    run = resolved.run
    batch, steps = int(run.batch), int(run.micro_batches)
    clipping = file.training.gradient_clipping
    data: dict[str, Any] = {
        "train_batch_size": batch * steps * int(run.mesh.dp),
        "train_micro_batch_size_per_gpu": batch,
        "gradient_accumulation_steps": steps,
        "bf16": {"enabled": run.precision.startswith("bf16")},
        "fp16": {"enabled": run.precision.startswith("fp16")},
        "zero_optimization": _zero(run),
        "optimizer": optimizer_section(run),
        "gradient_clipping": CLIPPING if clipping is None else clipping,
    }
    if run.optimizer not in TESTED:
        data["zero_allow_untested_optimizer"] = True
    checkpointing = {key: bool(run.options[key]) for key in CHECKPOINT_KEYS if key in run.options}
    if checkpointing and run.recompute == FULL:
        data["activation_checkpointing"] = checkpointing
    return data


def _refusal(resolved: ResolvedRun) -> str:
    """Why a run has no DeepSpeed configuration, in a sentence; empty where it has one."""
    engine = resolved.engine
    if engine.name not in engines():
        return f"{engine.title} serves models, and has no DeepSpeed configuration; add training"
    if "zero_stage" not in engine.options:
        return (
            f"engine.type={engine.name!r} does not use DeepSpeed; set it to 'deepspeed' or "
            "'megatron_deepspeed', or export json"
        )
    return ""


def _swap_problems(run: Run) -> list[str]:
    """A sentence where a parameter shard is larger than the buffers for swapping to NVMe."""
    shard = -(-run.arch.largest_weight // int(run.mesh.dp))
    if run.options.get("offload_param") != "nvme" or shard <= SWAP_ELEMENTS:
        return []
    return [
        f"engine.offload_param='nvme': a shard of {shard:,} elements is larger than the swap "
        f"buffers of {SWAP_ELEMENTS:,}; use more ranks or 'cpu'"
    ]


def _zero(run: Run) -> dict[str, Any]:
    """The `zero_optimization` section."""
    section: dict[str, Any] = {"stage": int(run.options["zero_stage"])}
    section |= {key: value for key in ZERO_KEYS if (value := run.options.get(key)) is not None}
    for key in ("offload_optimizer", "offload_param"):
        place = run.options.get(key, "none")
        if place == "none":
            continue
        pinned = run.options.get("pin_memory", OPTIONS["pin_memory"])
        section[key] = {"device": place, "pin_memory": bool(pinned)}
        if place == "nvme":
            section[key]["nvme_path"] = NVME_PATH
    if run.saving == FULL_DICT and section["stage"] == 3:
        section["stage3_gather_16bit_weights_on_model_save"] = True
    return section


def write_text(file: RunFile, resolved: ResolvedRun) -> Written:
    """The text of DeepSpeed's JSON, and what the program must do itself."""
    data = write(file, resolved)
    keys = program_keys(file, resolved, run_file(data, model=None).data)
    others = ", ".join((f"model.name={quoted(resolved.model.address)}", *keys))
    return Written(text=json_text(data), notes=(f"the program itself sets {others}",))
