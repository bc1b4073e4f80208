"""Names of DeepSpeed's JSON for the options of a run, and its optimizer."""

from __future__ import annotations

from typing import Any

from ...run.run import Run
from ...training.engines.deepspeed.options import OPTIMIZERS
from ...training.optimizers import FOREACH
from ..translation.arguments import tables

SWAP_ELEMENTS = 100_000_000  # of one of the buffers through which parameters on NVMe pass
# Options that have the same name in "zero_optimization".
ZERO_KEYS = tuple(tables(__file__)["zero_keys"])
CHECKPOINT_KEYS = ("partition_activations", "cpu_checkpointing")


def optimizer_section(run: Run, **params: Any) -> dict[str, Any]:
    """The `optimizer` section: DeepSpeed's fused or CPU version, unless the run chooses torch's.

    runtime/engine.py:2380: `torch_adam` is torch's Adam, whose default on a GPU is foreach.
    """
    name, extra = OPTIMIZERS[run.optimizer]
    params |= extra
    if name == "SGD" and run.implementation:
        params[run.implementation] = True
    elif run.implementation == FOREACH:
        params["torch_adam"] = True
    return {"type": name, "params": params}
