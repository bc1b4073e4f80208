"""A full state dict of a sharded model on rank 0, in the dtype of the shards.

Version 2 gathers one parameter at a time (torch 2.13 distributed/_state_dict_utils.py
_gather_state_dict, which accelerate 1.15.0 accelerator.py get_state_dict calls with cpu_offload).
Version 1 gathers one unit at a time and copies it to the host, where its parameters are cloned; the
root's copy stays until all layers are done (torch 2.13 distributed/fsdp/_state_dict_utils.py
_full_pre_state_dict_hook, _full_post_state_dict_hook; _flat_param.py to_cpu).
"""

from __future__ import annotations

from typing import Any

from ....ledger.ledger import Ledger
from ....ledger.num import Bytes, larger, sized
from ....ledger.source import code
from ....run.run import Run
from ...step.saving import with_saving
from .options import PRECISIONS, option

UNIT_CODE = code("torch 2.13 distributed/fsdp/_state_dict_utils.py, _flat_param.py to_cpu")
PARAMETER_CODE = code("torch 2.13 distributed/_state_dict_utils.py _gather_state_dict")


def with_full_state_dict(run: Run, plan: Any, ledger: Ledger) -> Ledger:
    """The ledger with a save after the step; `plan`: the layout of either version."""
    if not run.saving:
        return ledger
    bits = PRECISIONS[run.precision][0]
    model = sized(run.scaled(run.arch.num_parameters), bits)
    if option(run, "fsdp_version") == 1:
        largest: Bytes = plan.root.flat
        for _, unit in plan.kinds:
            largest = larger(largest, unit.flat)
        return with_saving(run, ledger, largest, model + plan.root.flat, UNIT_CODE)
    whole = sized(run.scaled(run.arch.largest_weight), bits)
    return with_saving(run, ledger, whole, model, PARAMETER_CODE)
