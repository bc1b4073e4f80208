"""ZeRO 0: whole copies on every rank, with DeepSpeed's mixed-precision optimizers."""

from __future__ import annotations

from collections.abc import Iterator

from ....ledger.ledger import GRAD, OPTIM, PARAM, TEMP, Entry
from .layout import BUILD, SETUP, ZeroLayout, always, named, never
from .sizes import ZeroSizes

FUSED_ADAM = "ops/adam/fused_adam.py:155"  # where the optimizer states are made
REDUCE_ELEMENTS = 500_000_000  # MEMORY_OPT_ALLREDUCE_SIZE, runtime/engine.py:151


def fused_entries(plan: ZeroLayout) -> Iterator[Entry]:
    """FP16_Optimizer around FusedAdam: 16-bit weights, fp32 masters, states from the start."""
    entry, sizes, where = plan.entry, plan.sizes, "runtime/fp16/fused_optimizer.py"
    both, first_step = (BUILD, SETUP), f"{where}:125 a first step with zero gradients"
    steps, flat = named("optimizer.cast", "optimizer"), sizes.step_grad
    yield entry("parameters", PARAM, sizes.flat, always, f"{where}:94", both)
    yield entry("fp32 master weights", OPTIM, sizes.masters, always, f"{where}:100", both)
    yield entry(plan.states_name, OPTIM, sizes.states, always, first_step, both)
    yield entry("zero gradients of the first step", GRAD, flat, never, f"{where}:127", (SETUP,))
    yield entry("fp32 gradients, one by one", TEMP, flat, named("optimizer.cast"), f"{where}:285")
    yield entry("fp32 gradients, flat", GRAD, flat, steps, f"{where}:290")


def plain_entries(plan: ZeroLayout) -> Iterator[Entry]:
    """fp32: the optimizer steps on the weights themselves."""
    sizes, where = plan.sizes, "runtime/engine.py:2314"
    yield plan.entry("parameters", PARAM, sizes.flat, always, where, (BUILD, SETUP))
    yield plan.entry(plan.states_name, OPTIM, sizes.states, always, FUSED_ADAM)
    yield update_entry(plan, sizes)


def update_entry(plan: ZeroLayout, sizes: ZeroSizes) -> Entry:
    """The temporaries of the optimizer's update."""
    step, where = named("optimizer"), "runtime/engine.py:2380 torch_adam"
    return plan.entry("optimizer temporaries", TEMP, sizes.update, step, where)


def pipeline_entries(plan: ZeroLayout) -> Iterator[Entry]:
    """BF16_Optimizer under a pipeline: masters and states are sharded over dp, gradients are whole.

    The gradient buffer has the whole stage's gradients and is never freed.
    """
    entry, sizes, where = plan.entry, plan.sizes, "runtime/bf16_optimizer.py"
    steps, whole = named("optimizer.cast", "optimizer"), sizes.unflattened
    yield entry("parameters", PARAM, sizes.flat, always, f"{where}:160", (BUILD, SETUP))
    yield entry("parameters before flattening", PARAM, whole, never, f"{where}:160", (BUILD,))
    yield entry("fp32 master weights", OPTIM, sizes.masters, always, f"{where}:182", (SETUP,))
    yield entry("gradient buffer", GRAD, sizes.flat, always, f"{where}:191", (SETUP,))
    yield entry(plan.states_name, OPTIM, sizes.states, always, FUSED_ADAM)
    yield entry("fp32 gradients", GRAD, sizes.step_grad, steps, f"{where}:417")
    yield update_entry(plan, sizes)
