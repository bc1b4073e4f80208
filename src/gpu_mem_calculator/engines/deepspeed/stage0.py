"""ZeRO 0: whole copies on every rank, with DeepSpeed's mixed-precision optimizers."""

from __future__ import annotations

from collections.abc import Iterator

from ...ledger.ledger import GRAD, OPTIM, PARAM, TEMP, Entry
from .layout import BUILD, SETUP, ZeroLayout, always, named
from .sizes import ZeroSizes

REDUCE_ELEMENTS = 500_000_000  # MEMORY_OPT_ALLREDUCE_SIZE, runtime/engine.py:151


def fused_entries(plan: ZeroLayout) -> Iterator[Entry]:
    """FP16_Optimizer around FusedAdam: 16-bit weights, fp32 masters, states from the start."""
    sizes, where = plan.sizes, "runtime/fp16/fused_optimizer.py"
    both = (BUILD, SETUP)
    yield plan.entry("parameters", PARAM, sizes.flat, always, f"{where}:94", both)
    yield plan.entry("fp32 master weights", OPTIM, sizes.masters, always, f"{where}:100", both)
    yield plan.entry(
        f"{plan.run.optimizer} states",
        OPTIM,
        sizes.states,
        always,
        f"{where}:125 a first step with zero gradients",
        both,
    )
    yield plan.entry(
        "zero gradients of the first step",
        GRAD,
        sizes.step_grad,
        lambda b: 0,
        f"{where}:127",
        (SETUP,),
    )
    yield plan.entry(
        "fp32 gradients, one by one", TEMP, sizes.step_grad, named("optimizer.cast"), f"{where}:285"
    )
    yield plan.entry(
        "fp32 gradients, flat",
        GRAD,
        sizes.step_grad,
        named("optimizer.cast", "optimizer"),
        f"{where}:290",
    )


def plain_entries(plan: ZeroLayout) -> Iterator[Entry]:
    """fp32: the optimizer steps on the weights themselves."""
    sizes, where = plan.sizes, "runtime/engine.py:2314"
    yield plan.entry("parameters", PARAM, sizes.flat, always, where, (BUILD, SETUP))
    yield plan.entry(
        f"{plan.run.optimizer} states", OPTIM, sizes.states, always, "ops/adam/fused_adam.py:155"
    )
    yield update_entry(plan, sizes)


def update_entry(plan: ZeroLayout, sizes: ZeroSizes) -> Entry:
    """The temporaries of the optimizer's update."""
    return plan.entry(
        "optimizer temporaries",
        TEMP,
        sizes.update,
        named("optimizer"),
        "runtime/engine.py:2380 torch_adam",
    )


def pipeline_entries(plan: ZeroLayout) -> Iterator[Entry]:
    """BF16_Optimizer under a pipeline: masters and states are sharded over dp, gradients are whole.

    The gradient buffer has the whole stage's gradients and is never freed.
    """
    sizes, where = plan.sizes, "runtime/bf16_optimizer.py"
    both = (BUILD, SETUP)
    yield plan.entry("parameters", PARAM, sizes.flat, always, f"{where}:160", both)
    yield plan.entry(
        "parameters before flattening",
        PARAM,
        sizes.unflattened,
        lambda b: 0,
        f"{where}:160",
        (BUILD,),
    )
    yield plan.entry("fp32 master weights", OPTIM, sizes.masters, always, f"{where}:182", (SETUP,))
    yield plan.entry("gradient buffer", GRAD, sizes.flat, always, f"{where}:191", (SETUP,))
    yield plan.entry(
        f"{plan.run.optimizer} states", OPTIM, sizes.states, always, "ops/adam/fused_adam.py:155"
    )
    yield plan.entry(
        "fp32 gradients",
        GRAD,
        sizes.step_grad,
        named("optimizer.cast", "optimizer"),
        f"{where}:417",
    )
    yield update_entry(plan, sizes)
