"""A measured life: a program's phases from loading to saving, each with its peak on the GPU and the
highest memory of its process so far.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ...estimates.calculator import Estimate, full_estimate
from ...estimates.node import FIRST, STEADY, PhaseMemory
from ...ledger.units import MIB
from ...run.cuda.libraries import HOST_NCCL_BYTES
from ...run.phases import (
    EVALUATION,
    GENERATING,
    LOADING,
    MERGING,
    RESUMING,
    SAVING,
    SAVING_MERGED,
    SAVING_OPTIMIZER,
    STARTUP,
)

TRAINED, HOST = "trained", ".host"  # the phase that every life has; the end of a host's phase
GATHERED = "gathered_model"
MARK, RESET = "high_water_mark", "reset between phases"  # whether each phase has a host's peak
# By a measured phase's name: ours that it is.
PHASES = {
    "loaded": (LOADING,),
    "startup": (STARTUP,),
    TRAINED: (FIRST, STEADY),
    "evaluated": (EVALUATION,),
    "generated": (GENERATING,),
    GATHERED: (SAVING,),
    "saved_model": (SAVING,),
    "gathered_optimizer": (SAVING_OPTIMIZER,),
    "saved_optimizer": (SAVING_OPTIMIZER,),
    "resumed": (STARTUP, RESUMING),
    "merged": (MERGING,),
    "saved_merged": (SAVING_MERGED,),
}
# What a program does beside training, by the phase that it was measured in.
DOES = {"evaluated": "evaluates"}
# Keys of a measured engine's section that say how it gathers what it saves, and FSDP 2's own name
# of the strategy.
STATE_DICTS = (
    "state_dict_type",
    "state_dict_config",
    "state_dict_options",
    "stage3_gather_16bit_weights_on_model_save",
)
RESHARDS = "reshard_after_forward"
DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}  # our words for torch's
# Of a rank that no program starts: transformers' code is imported after the measurement began.
LATE_IMPORTS = 285 * MIB


def is_life(phases: Iterable[str]) -> bool:
    """Whether measured phases are those of a life."""
    return TRAINED in phases


def host_phases(data: Mapping[str, Any]) -> dict[str, int]:
    """The highest memory of the process in each phase, less that before the program began, by the
    phase's name with HOST behind it; the highest so far where the row does not have it phase by
    phase. Empty for a run that did not measure it.
    """
    measured = data.get("measured") or {}
    start = (measured.get("host") or {}).get("start") or {}
    phases = data.get("phases") or {}
    if not start or not is_life(phases):
        return {}
    found = {name: _highest(one.get("host") or {}) for name, one in phases.items()}
    return {name + HOST: peak - start["VmRSS"] for name, peak in found.items() if peak}


def _highest(host: Mapping[str, int]) -> int | None:
    return host.get("VmPeakPhase") or host.get("VmHWM")


def life_estimate(
    config: Mapping[str, Any], phases: Iterable[str], life: Mapping[str, Any]
) -> Estimate:
    """The estimate of a run that does what was measured. A program prepares a quantized base by
    prepare_model_for_kbit_training, which recomputes activations unless told otherwise.
    """
    if "program" not in config:
        return full_estimate(_engine_run(config, life))
    program = config["program"]
    data = {**program.get("data", {}), **{DOES[one]: True for one in phases if one in DOES}}
    if wanted := program.get("generate"):
        names = {"prompt_len": "prompt", "max_new_tokens": "new_tokens"}
        data["generates"] = {names.get(name, name): value for name, value in wanted.items()}
    own = {"gradient_checkpointing": True} if program.get("quantization") else {}
    args = {**own, **program.get("args", {})}
    meant = {key: value for key, value in program.items() if key != "generate"}
    return full_estimate({**config, "program": {**meant, "args": args, "data": data}})


def _engine_run(config: Mapping[str, Any], life: Mapping[str, Any]) -> dict[str, Any]:
    """The run file of a rank that loads its model on the host, and gathers what it saves."""
    own = (*STATE_DICTS, RESHARDS)
    engine = {key: value for key, value in config["engine"].items() if key not in own}
    if RESHARDS in config["engine"]:
        engine["sharding_strategy"] = (
            "full_shard" if config["engine"][RESHARDS] else "shard_grad_op"
        )
        engine["init_device"] = "cpu"
    if "zero_stage" in engine:
        engine |= {"zero_init": False} if engine["zero_stage"] == 3 else {}
    gathers = any(key in config["engine"] for key in STATE_DICTS)
    dtype = DTYPES.get((life.get("load") or {}).get("dtype", ""))
    training = {**config["training"], **({"load_dtype": dtype} if dtype else {})}
    training |= {"saving": "full_state_dict"} if gathers else {}
    return {**config, "engine": engine, "training": training}


def life_peaks(
    estimate: Estimate, names: Iterable[str], life: Mapping[str, Any], *, each: bool
) -> dict[str, int]:
    """The predicted peak of each measured phase; those of the host are the highest so far, unless
    `each` phase has its own. Of several files, start-up has the pages of one at a time.
    """
    largest = max((life.get("checkpoint") or {}).get("file_bytes") or [1 << 62])
    alone = not estimate.resolved.meant
    found = {one.name: one for one in estimate.result.phases}
    names = list(names)
    peaks, highest = {}, 0
    for name in names:
        ours = [found[one] for one in PHASES.get(name.removesuffix(HOST), ()) if one in found]
        if name.endswith(HOST):
            own = max((_of_process(one, largest, alone=alone) for one in ours), default=0)
            highest = own if each else max(highest, own)
            if highest:
                peaks[name] = highest
        elif ours and not (name.startswith("saved") and GATHERED in names):
            peaks[name] = max(one.gpu_bytes for one in ours)
    return peaks


def _of_process(one: PhaseMemory, largest: int, *, alone: bool) -> int:
    """The bytes of a process in a phase. `largest`: of the checkpoint's files; `alone`: no program
    starts the rank, and its process group is a fake one, without NCCL.
    """
    taken = one.process_bytes
    if one.name == STARTUP:
        taken += min(one.file_bytes, largest) - one.file_bytes
    if alone:
        taken += LATE_IMPORTS - (0 if one.name in (LOADING, STARTUP) else HOST_NCCL_BYTES)
    return taken
