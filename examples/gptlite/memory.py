"""What a model takes before it has seen any data: parameters, buffers and DeepSpeed's tables.

Models are made on the meta device, so that nothing is allocated and the answer comes at once.
"""

from __future__ import annotations

import importlib
from argparse import Namespace

import torch
from pipeline import largest_stage
from torch import nn

from gpu_mem_calculator.estimates.published import zero_tables

GPUS = 8  # a node
GIB = zero_tables.GIB


def sizes(model: nn.Module) -> tuple[int, int, int]:
    """Bytes of the parameters, bytes of the buffers, and how many buffers there are."""
    buffers = list(model.buffers())
    return (
        sum(p.numel() * p.element_size() for p in model.parameters()),
        sum(b.numel() * b.element_size() for b in buffers),
        len(buffers),
    )


def summary(model: nn.Module, gpus: int, nodes: int) -> list[str]:
    """The figures with three digits, where DeepSpeed's tables have two."""
    total, largest = zero_tables.model_to_params(model)
    weights, buffers, count = sizes(model)
    fits = (total, gpus, nodes)
    z2 = [zero_tables.zero2_bytes(*fits, cpu_offload=cpu)[1] / GIB for cpu in (True, False)]
    old = zero_tables.zero2_bytes(*fits, cpu_offload=False, legacy=True)[1] / GIB
    z3 = [
        zero_tables.estimate_zero3_model_states_mem_needs(total, largest, gpus, nodes, cpu, cpu)[1]
        / GIB
        for cpu in (True, False)
    ]
    return [
        f"{total:,} parameters; native size {weights / GIB:.3f} GiB",
        f"{count} buffers, {buffers / GIB:.3f} GiB on every GPU whatever the ZeRO stage is: "
        "DeepSpeed's estimator leaves them out",
        f"ZeRO-2, GiB per GPU: {z2[0]:.3f} with the optimizer offloaded, {z2[1]:.3f} without",
        f"  ({old:.3f} without is what DeepSpeed before 0.14.3 says: 4P + 16P/N; today's "
        "formula is 2P + 18P/N)",
        f"ZeRO-3, GiB per GPU: {z3[0]:.3f} with optimizer and parameters offloaded, "
        f"{z3[1]:.3f} without",
    ]


def tables(model: nn.Module, gpus: int, nodes: int) -> list[str]:
    """DeepSpeed's own tables."""
    total, largest = zero_tables.model_to_params(model)
    return [
        zero_tables.zero2_table(total, gpus, nodes),
        zero_tables.zero3_table(total, largest, gpus, nodes),
    ]


def estimate(options: Namespace) -> str:
    """All of it as text: of the model, or of the largest stage of its pipeline."""
    gpus, nodes = options.num_gpus or GPUS, options.num_nodes or 1
    with torch.device("meta"):
        model, _ = importlib.import_module(options.task).get_model_and_dataset(options)
    heading = f"{type(model).__name__} on {nodes} x {gpus} GPUs"
    notes = [
        "Activations, communication buffers and fragments come on top of all this: "
        "`gpu-mem-calc trace` and `measure` count them."
    ]
    if options.pipeline:
        stages = options.stages or gpus * nodes
        layers = model.to_layers()
        if stages > len(layers):
            raise ValueError(
                f"--stages {stages} is more than the {len(layers)} layers of the "
                f"model: use {len(layers)} or fewer"
            )
        number, model = largest_stage(layers, stages)
        heading += f", stage {number} of 0 to {stages - 1}, the first with the most parameters"
        notes.append(
            "A pipeline does not go with ZeRO 2 and 3: their rows show "
            "what the formulas give, not what can be run."
        )
    return "\n\n".join(
        ["\n".join([heading, *summary(model, gpus, nodes)]), *tables(model, gpus, nodes), *notes]
    )
