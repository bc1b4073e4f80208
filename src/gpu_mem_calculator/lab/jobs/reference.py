"""A frozen reference model of a job, which runs forward before each backward."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from ...training.step.reference import BASE, COPY
from .job import Job
from .losses import use_kernels
from .model import autocast_dtype, build, inputs

Reference = Callable[[Any], None]


def reference(job: Job, model: Any) -> Reference | None:
    """What runs the reference on a model's arguments: a copy, or the model without its adapters."""
    kind = job.resolved.run.reference
    if kind not in (COPY, BASE):
        return None
    frozen = model
    if kind == COPY:
        frozen = build(job, job.world.device).eval()
        use_kernels(job, frozen)

    def run(arguments: Any) -> None:
        with model.disable_adapter() if kind == BASE else nullcontext():
            forward(job, frozen, arguments)

    return run


def precompute(job: Job, model: Any) -> None:
    """Run the model forward once, before it is trained."""
    forward(job, model, inputs(job, None))


def forward(job: Job, model: Any, arguments: Any) -> None:
    """Run a model forward without autograd."""
    import torch

    dtype = autocast_dtype(job)
    cast = torch.autocast(job.world.device, dtype=dtype) if dtype else nullcontext()
    with torch.no_grad(), cast:
        model(**arguments)
