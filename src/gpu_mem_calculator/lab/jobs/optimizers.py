"""The optimizer of a run, and gradient clipping."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...training.step.optimizers import FOREACH, FORLOOP, FUSED, OPTIMIZERS
from .job import Job

# torch's optimizers: the class, and its arguments besides the learning rate
TORCH: dict[str, tuple[str, dict[str, Any]]] = {
    "adamw": ("AdamW", {}),
    "adam": ("Adam", {}),
    "sgd": ("SGD", {}),
    "sgd_momentum": ("SGD", {"momentum": 0.9}),
    "adagrad": ("Adagrad", {}),
    "rmsprop": ("RMSprop", {}),
    "adafactor": ("Adafactor", {}),
    "muon": ("Muon", {}),
}
LEARNING_RATE = 1e-5


# transformers' Adafactor as its Trainer makes it (transformers 5.17.0 trainer_optimizer.py).
TRANSFORMERS = {"adafactor_transformers": {"scale_parameter": False, "relative_step": False}}


def optimizer(job: Job, params: Sequence[Any], model: Any) -> Any:
    """The run's optimizer over the parameters of the model that train.

    The implementation is always passed: by default torch chooses by the device, and a trace runs on
    the CPU.
    """
    import torch

    run = job.resolved.run
    if run.optimizer in TRANSFORMERS:
        from transformers.optimization import Adafactor

        decayed_first = sorted(params, key=lambda p: p.ndim < 2)
        return Adafactor(decayed_first, lr=LEARNING_RATE, **TRANSFORMERS[run.optimizer])
    if run.optimizer not in TORCH:
        from .quantized import optimizer as bitsandbytes_optimizer

        tables = [m for m in model.modules() if isinstance(m, torch.nn.Embedding)]
        wide = tables if run.embedding_states_32bit else []
        return bitsandbytes_optimizer(run.optimizer, params, wide)
    name, extra = TORCH[run.optimizer]
    if run.optimizer == "muon":  # torch's Muon takes matrices only
        return torch.optim.Muon([p for p in params if p.ndim == 2], lr=LEARNING_RATE)
    default = FORLOOP if run.options.get("cpu_offload") else OPTIMIZERS[run.optimizer].default
    implementation = run.implementation or default  # on the host torch chooses the loop
    choice = {"fused": True} if implementation == FUSED else {"foreach": implementation == FOREACH}
    return getattr(torch.optim, name)(params, lr=LEARNING_RATE, **extra, **choice)


def clip(job: Job, params: Sequence[Any]) -> None:
    """Clip the norm of the gradients to 1, where the run clips."""
    import torch

    if job.resolved.run.clipping:
        torch.nn.utils.clip_grad_norm_(params, 1.0, foreach=True)
