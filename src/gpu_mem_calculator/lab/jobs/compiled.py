"""A job whose model is compiled, as transformers.Trainer and accelerate compile it."""

from __future__ import annotations

from typing import Any

from .job import Job
from .model import autocast_dtype


def compile_model(job: Job, model: Any) -> Any:
    """The model under torch.compile in the run's mode; the model itself where there is none.

    Under autocast the graph returns fp32 logits (accelerate 1.15.0 utils/operations.py
    convert_outputs_to_fp32).
    """
    import torch

    mode = job.resolved.run.compile
    if not mode:
        return model
    if autocast_dtype(job):
        inner = model.forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            outputs = inner(*args, **kwargs)
            outputs.logits = outputs.logits.float()
            return outputs

        model.forward = forward
    return torch.compile(model, mode=mode)
