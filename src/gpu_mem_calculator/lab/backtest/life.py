"""A measured life: a program's phases from loading to saving, each with its peak on the GPU and the
highest memory of its process so far.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ...estimates.calculator import Estimate, full_estimate
from ...estimates.life import FIRST, STEADY
from ...run.phases import EVALUATION, LOADING, MERGING, RESUMING, SAVING, STARTUP

TRAINED, HOST = "trained", ".host"  # the phase that every life has; the end of a host's phase
# By a measured phase's name: ours that it is.
PHASES = {
    "loaded": (LOADING,),
    "startup": (STARTUP,),
    TRAINED: (FIRST, STEADY),
    "evaluated": (EVALUATION,),
    "saved_model": (SAVING,),
    "saved_optimizer": (SAVING,),
    "resumed": (RESUMING,),
    "merged": (MERGING,),
}
# What a program does beside training, by the phase that it was measured in.
DOES = {"evaluated": "evaluates"}


def is_life(phases: Iterable[str]) -> bool:
    """Whether measured phases are those of a life."""
    return TRAINED in phases


def host_phases(data: Mapping[str, Any]) -> dict[str, int]:
    """The highest memory of the process so far in each phase, less that before the program began,
    by the phase's name with HOST behind it; empty for a run that did not measure it.
    """
    start = ((data.get("measured") or {}).get("host") or {}).get("start") or {}
    phases = data.get("phases") or {}
    if not start or not is_life(phases):
        return {}
    found = {name: (one.get("host") or {}).get("VmHWM") for name, one in phases.items()}
    return {name + HOST: peak - start["VmRSS"] for name, peak in found.items() if peak}


def life_estimate(config: Mapping[str, Any], phases: Iterable[str]) -> Estimate:
    """The estimate of a program that does what was measured. It prepares a quantized base by
    prepare_model_for_kbit_training, which recomputes activations unless told otherwise.
    """
    program = config["program"]
    data = {**program.get("data", {}), **{DOES[one]: True for one in phases if one in DOES}}
    own = {"gradient_checkpointing": True} if program.get("quantization") else {}
    args = {**own, **program.get("args", {})}
    return full_estimate({**config, "program": {**program, "args": args, "data": data}})


def life_peaks(estimate: Estimate, names: Iterable[str]) -> dict[str, int]:
    """The predicted peak of each measured phase; those of the host are the highest so far."""
    found = {one.name: one for one in estimate.result.phases}
    peaks, highest = {}, 0
    for name in names:
        ours = [found[one] for one in PHASES.get(name.removesuffix(HOST), ()) if one in found]
        if name.endswith(HOST):
            highest = max([highest, *(one.process_bytes for one in ours)])
            peaks[name] = highest
        elif ours:
            peaks[name] = max(one.gpu_bytes for one in ours)
    return peaks
