"""Seconds of the optimizer step."""

from __future__ import annotations

from typing import Any

from ...run.run import Run
from ..curves import optimizers
from ..curves.host import FSDP_STEP, ZERO_STEP
from ..curves.machine import Machine
from .elementwise import elementwise_seconds
from .host import num_tensors
from .numbers import larger
from .operators import layer_kinds
from .step_seconds import Seconds
from .tapes import DEEPSPEED, FSDP, MEGATRONS
from .traffic import MemoryKernel

# The optimizers that are as fast as another one.
LIKE = {"adam": "adamw", "adafactor_transformers": "adafactor", "lion": "sgd_momentum"}
# Bytes of a parameter besides the step: the weight is copied back to 16 bits; ZeRO copies the
# gradient to 32 bits before.
WEIGHT_COPY, GRADIENT_COPY = 6, 6
# Apex's kernels, which were not measured: Adam reads and writes weight and two states and reads the
# gradient; clipping reads gradients, then reads and writes them; the weight is copied.
APEX_BYTES, APEX_CLIP, APEX_COPY = 28, 12, 2


def optimizer_seconds(run: Run, engine: str, machine: Machine, elements: Any) -> Seconds:
    """Seconds to clip gradients and step `elements` parameters on the GPU."""
    if engine in MEGATRONS and run.implementation != "foreach":
        apex = APEX_BYTES + APEX_CLIP * run.clipping + APEX_COPY
        return elementwise_seconds(machine, [MemoryKernel("optimizer", elements * apex)])
    name = LIKE.get(run.optimizer, run.optimizer)
    key = (name, _implementation(run, engine, name))
    known = optimizers.BYTES.get(key) or optimizers.BYTES["adamw", "foreach"]
    narrow = int(engine not in (*MEGATRONS, DEEPSPEED, FSDP) and run.precision.endswith("_pure"))
    num_bytes = known[narrow] + optimizers.CLIP[narrow] * run.clipping
    if engine in (*MEGATRONS, DEEPSPEED) and run.precision != "fp32":
        num_bytes += WEIGHT_COPY + GRADIENT_COPY * (engine == DEEPSPEED)
    device = elements * num_bytes / machine.memory_bytes_per_second
    host = _tensors(run) * _tensor_seconds(run, engine, key)
    if name in optimizers.WAITS:
        return device + host
    return larger(device, host)


def _implementation(run: Run, engine: str, name: str) -> str:
    """The row of the table: what the run chooses, else the engine's own."""
    if name in optimizers.WAITS:
        return ""
    if name != "adamw":
        return "foreach"
    if engine == DEEPSPEED and run.implementation != "foreach":
        return "deepspeed"
    return run.implementation or "foreach"


def _tensor_seconds(run: Run, engine: str, key: tuple[str, str]) -> float:
    """Seconds of the host for one tensor."""
    seconds = optimizers.TENSOR.get(key, optimizers.TENSOR["adamw", "foreach"])
    if engine == FSDP:
        seconds += FSDP_STEP
    elif engine == DEEPSPEED:
        seconds = ZERO_STEP[int(run.options.get("zero_stage") or 0)]
    return 0.0 if engine in MEGATRONS else seconds


def _tensors(run: Run) -> Seconds:
    """Tensors that are stepped."""
    if run.adapter is not None:
        return sum(kind.count * len(run.adapter.targets) * 2 for kind in layer_kinds(run.arch))
    return sum(kind.count * num_tensors(kind.layer) for kind in layer_kinds(run.arch)) + 3
