"""Optimizers as a training script makes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..step.optimizers import FOREACH, FORLOOP, FUSED, OPTIMIZERS
from .job import Job

# torch's own: the class, and what it is given beside the learning rate
TORCH: dict[str, tuple[str, dict[str, Any]]] = {
    "adamw": ("AdamW", {}),
    "adam": ("Adam", {}),
    "sgd": ("SGD", {}),
    "sgd_momentum": ("SGD", {"momentum": 0.9}),
    "adafactor": ("Adafactor", {}),
    "muon": ("Muon", {}),
}
LEARNING_RATE = 1e-5


def optimizer(job: Job, params: Sequence[Any]) -> Any:
    """The run's optimizer over the parameters that train.

    The implementation is always said: left out, torch would choose by the device, and a trace
    runs on another one.
    """
    import torch

    run = job.resolved.run
    if run.optimizer not in TORCH:
        from .quantized import optimizer as bitsandbytes_optimizer

        return bitsandbytes_optimizer(run.optimizer, params)
    name, extra = TORCH[run.optimizer]
    if run.optimizer == "muon":  # torch's takes matrices only
        return torch.optim.Muon([p for p in params if p.ndim == 2], lr=LEARNING_RATE)
    usual = FORLOOP if run.options.get("cpu_offload") else OPTIMIZERS[run.optimizer].default
    way = run.implementation or usual  # on the host, torch's own choice is the loop
    chosen = {"fused": True} if way == FUSED else {"foreach": way == FOREACH}
    return getattr(torch.optim, name)(params, lr=LEARNING_RATE, **extra, **chosen)


def clip(job: Job, params: Sequence[Any]) -> None:
    """Clip the gradients' norm to 1, where the run says so."""
    import torch

    if job.resolved.run.clipping:
        torch.nn.utils.clip_grad_norm_(params, 1.0, foreach=True)
