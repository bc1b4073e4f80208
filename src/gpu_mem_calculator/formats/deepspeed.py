"""A run as DeepSpeed's JSON: every option of the run file that DeepSpeed reads from there.

What the program decides itself is not in it: the model, its sequence and adapters, zero.Init, the
stages of a pipeline, which layers run twice. Nor is the learning rate, which takes no memory.
Names and rules are those of DeepSpeed 0.19.8 (runtime/config.py, runtime/zero/config.py).
"""

from __future__ import annotations

from typing import Any

from ..core.errors import InputError
from ..core.models import RunFile
from ..core.resolved_run import ResolvedRun
from ..engines import engines
from ..engines.deepspeed.options import OPTIONS
from ..jobs.deepspeed import CHECKPOINT_KEYS, OPTIMIZERS, SWAP_ELEMENTS, ZERO_KEYS
from ..run.run import Run

FILENAME = "ds_config.json"
NVME_PATH = "/local_nvme"  # as DeepSpeed's documentation has it: the fast disk's own comes here
CLIPPING = 1.0  # the norm, where a run says nothing of it
# Optimizers that ZeRO wraps unasked (runtime/zero/utils.py ZERO_SUPPORTED_OPTIMIZERS).
TESTED = ("adam", "adamw", "lion")


def write(file: RunFile, resolved: ResolvedRun) -> dict[str, Any]:
    """The JSON for a run of DeepSpeed, or of Megatron with it."""
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
        "optimizer": _optimizer(run),
        "gradient_clipping": CLIPPING if clipping is None else clipping,
    }
    if run.optimizer not in TESTED:
        data["zero_allow_untested_optimizer"] = True
    chosen = {key: bool(run.options[key]) for key in CHECKPOINT_KEYS if key in run.options}
    if chosen and run.recompute == "full":
        data["activation_checkpointing"] = chosen
    return data


def _refusal(resolved: ResolvedRun) -> str:
    """Why a run has no such file; empty where it has one."""
    engine = resolved.engine
    if engine.name not in engines():
        return f"{engine.title} serves models, and has no DeepSpeed configuration; add training"
    if "zero_stage" not in engine.options:
        return (f"engine.type={engine.name!r} does not use DeepSpeed; set it to 'deepspeed' or "
                "'megatron_deepspeed', or export json")  # fmt: skip
    return ""


def _swap_problems(run: Run) -> list[str]:
    """Shards that do not fit DeepSpeed's buffers on their way to a disk."""
    shard = -(-run.arch.largest_weight // int(run.mesh.dp))
    if run.options.get("offload_param") != "nvme" or shard <= SWAP_ELEMENTS:
        return []
    return [f"engine.offload_param='nvme': a shard of {shard:,} elements is larger than the swap "
            f"buffers of {SWAP_ELEMENTS:,}; use more ranks or 'cpu'"]  # fmt: skip


def _zero(run: Run) -> dict[str, Any]:
    """ZeRO's section, under its own names."""
    found: dict[str, Any] = {"stage": int(run.options["zero_stage"])}
    found |= {key: value for key in ZERO_KEYS if (value := run.options.get(key)) is not None}
    for key in ("offload_optimizer", "offload_param"):
        place = run.options.get(key, "none")
        if place == "none":
            continue
        pinned = run.options.get("pin_memory", OPTIONS["pin_memory"])
        found[key] = {"device": place, "pin_memory": bool(pinned)}
        if place == "nvme":
            found[key]["nvme_path"] = NVME_PATH
    return found


def _optimizer(run: Run) -> dict[str, Any]:
    """DeepSpeed's own fused or CPU version, unless torch's is asked for (runtime/engine.py)."""
    name, extra = OPTIMIZERS[run.optimizer]
    params = dict(extra)
    if name == "SGD" and run.implementation:
        params[run.implementation] = True
    elif run.implementation == "foreach":
        params["torch_adam"] = True
    return {"type": name, "params": params}
