"""ZeRO 0: whole copies on every rank, with DeepSpeed's mixed-precision optimizers."""

from __future__ import annotations

from collections.abc import Iterator

from ...ledger.ledger import GRAD, OPTIM, PARAM, TEMP, Entry
from ...ledger.num import Num
from ..optimizers import OPTIMIZERS, state_bytes, step_temp_bytes
from .partition import padded, slice_elements
from .plan import BIRTH, SETUP, Plan, always, named

REDUCE_ELEMENTS = 500_000_000  # MEMORY_OPT_ALLREDUCE_SIZE, runtime/engine.py:151


def fused_entries(plan: Plan) -> Iterator[Entry]:
    """FP16_Optimizer around FusedAdam: 16-bit weights, fp32 masters, states from the start."""
    count, where = plan.trainable, "runtime/fp16/fused_optimizer.py"
    both = (BIRTH, SETUP)
    row = OPTIMIZERS[plan.run.optimizer]
    yield plan.entry("parameters", PARAM, plan.width * count, always, f"{where}:94", both)
    yield plan.entry("fp32 master weights", OPTIM, 4 * count, always, f"{where}:100", both)
    yield plan.entry(f"{plan.run.optimizer} states", OPTIM, state_bytes(row, count, 32), always,
                     f"{where}:125 a first step with zero gradients", both)  # fmt: skip
    yield plan.entry("zero gradients of the first step", GRAD, 4 * count, lambda b: 0,
                     f"{where}:127", (SETUP,))  # fmt: skip
    yield plan.entry("fp32 gradients, one by one", TEMP, 4 * count, named("optimizer.cast"),
                     f"{where}:285")  # fmt: skip
    yield plan.entry("fp32 gradients, flat", GRAD, 4 * count, named("optimizer.cast", "optimizer"),
                     f"{where}:290")  # fmt: skip


def plain_entries(plan: Plan) -> Iterator[Entry]:
    """fp32: the optimizer steps on the weights themselves."""
    count, where = plan.trainable, "runtime/engine.py:2314"
    row = OPTIMIZERS[plan.run.optimizer]
    yield plan.entry("parameters", PARAM, 4 * count, always, where, (BIRTH, SETUP))
    yield plan.entry(f"{plan.run.optimizer} states", OPTIM, state_bytes(row, count, 32), always,
                     "ops/adam/fused_adam.py:155")  # fmt: skip
    yield update_entry(plan, count)


def update_entry(plan: Plan, count: Num) -> Entry:
    """What the update itself needs: nothing with FusedAdam, a copy with torch's foreach."""
    row = OPTIMIZERS[plan.run.optimizer]
    size = step_temp_bytes(row, plan.implementation, count, count, 32)
    return plan.entry("optimizer temporaries", TEMP, size, named("optimizer"),
                      "runtime/engine.py:2380 torch_adam")  # fmt: skip


def pipeline_entries(plan: Plan) -> Iterator[Entry]:
    """BF16_Optimizer under a pipeline: masters and states spread over dp, whole gradients.

    The gradient buffer covers the whole stage and is kept from the start.
    """
    where = "runtime/bf16_optimizer.py"
    whole, local = padded(plan.trainable, plan.ranks), slice_elements(plan.trainable, plan.ranks)
    row = OPTIMIZERS[plan.run.optimizer]
    both = (BIRTH, SETUP)
    yield plan.entry("parameters", PARAM, plan.width * whole, always, f"{where}:160", both)
    yield plan.entry("parameters before flattening", PARAM, plan.width * plan.trainable,
                     lambda b: 0, f"{where}:160", (BIRTH,))  # fmt: skip
    yield plan.entry("fp32 master weights", OPTIM, 4 * local, always, f"{where}:182", (SETUP,))
    yield plan.entry("gradient buffer", GRAD, plan.width * whole, always, f"{where}:191", (SETUP,))
    yield plan.entry(f"{plan.run.optimizer} states", OPTIM, state_bytes(row, local, 32), always,
                     "ops/adam/fused_adam.py:155")  # fmt: skip
    yield plan.entry("fp32 gradients", GRAD, 4 * local, named("optimizer.cast", "optimizer"),
                     f"{where}:417")  # fmt: skip
    yield update_entry(plan, local)
