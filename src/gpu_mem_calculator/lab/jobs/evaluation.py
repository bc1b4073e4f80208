"""An evaluation after a step, as transformers' Trainer runs it (trainer.py evaluation_loop)."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from .job import Job
from .model import autocast_dtype


def evaluate(job: Job, runner: Any) -> None:
    """Run batches forward without gradients; logits that are kept are gathered and concatenated."""
    import torch

    evaluation = job.resolved.run.evaluation
    assert evaluation is not None
    kept = logits = None
    runner.eval()
    for _ in range(max(evaluation.kept, 1)):
        logits = _logits(job, runner)
        if not evaluation.kept:
            logits = None
        elif kept is None:
            kept = logits
        else:
            kept = torch.cat((kept, logits), dim=0)
    del kept, logits
    runner.train()


def _logits(job: Job, runner: Any) -> Any:
    """The logits of one batch, of all ranks, in fp32 where accelerate autocasts."""
    import torch

    run, dtype = job.resolved.run, autocast_dtype(job)
    assert run.evaluation is not None
    shape = (int(run.evaluation.batch), int(run.evaluation.seq))
    ids = torch.randint(0, run.arch.vocab, shape, device=job.world.device)
    cast = torch.autocast(job.world.device, dtype=dtype) if dtype else nullcontext()
    with torch.no_grad(), cast:
        logits = runner(input_ids=ids, labels=ids)["logits"]
    if dtype:
        logits = logits.float()
    ranks = int(run.mesh.dp)
    return torch.cat([logits] * ranks) if ranks > 1 else logits
