"""The optimizer of a run, and gradient clipping."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...training.optimizers import FOREACH, FORLOOP, FUSED, OPTIMIZERS
from .job import Job
from .model import import_extra

LEARNING_RATE = 1e-5


def optimizer(job: Job, params: Sequence[Any], model: Any) -> Any:
    """The run's optimizer over the parameters of the model that train.

    torch's implementation is always passed: by default torch chooses by the device, and a trace
    runs on the CPU.
    """
    import torch

    run = job.resolved.run
    row = OPTIMIZERS[run.optimizer]
    module, _, name = row.make.partition(":")
    choice: dict[str, Any] = {}
    if FOREACH in row.implementations:  # on the host torch chooses the loop
        default = FORLOOP if run.options.get("cpu_offload") else row.default
        implementation = run.implementation or default
        fused = implementation == FUSED
        choice = {"fused": True} if fused else {"foreach": implementation == FOREACH}
    if row.decayed_first:
        params = sorted(params, key=lambda p: p.ndim < 2)
    if row.matrices:  # torch's Muon takes matrices only
        params = [p for p in params if p.ndim == 2]
    library = import_extra(module, "measure")
    made = getattr(library, name)(params, lr=LEARNING_RATE, **row.arguments, **choice)
    if run.embedding_states_32bit:
        manager = library.GlobalOptimManager.get_instance()
        for table in model.modules():
            if isinstance(table, torch.nn.Embedding):
                manager.register_module_override(table, "weight", {"optim_bits": 32})
    return made


def clip(job: Job, params: Sequence[Any]) -> None:
    """Clip the norm of the gradients to 1, where the run clips."""
    import torch

    if job.resolved.run.clipping:
        torch.nn.utils.clip_grad_norm_(params, 1.0, foreach=True)
