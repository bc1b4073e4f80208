"""Changes of a policy's generation that save memory."""

from __future__ import annotations

from collections.abc import Iterator

from ...run.rollout import TRANSFORMERS, VLLM
from ...run.run import Run
from .candidate import Candidate

PATH = "training.generation"


def rollout_savings(run: Run) -> Iterator[Candidate]:
    """vLLM may sleep while the policy is trained; the policy may generate for each micro-batch."""
    rollout = run.rollout
    if rollout is None:
        return
    if rollout.engine == VLLM and not rollout.sleep_level:
        yield Candidate("vLLM asleep", (f"{PATH}.sleep_level=2",), "loads its weights again", 2)
    alone = int(run.mesh.dp) == 1 and rollout.engine == TRANSFORMERS
    if alone and int(rollout.sequences) > int(run.batch):
        title, cost = f"{int(run.batch)} completions at a time", "slower generation"
        yield Candidate(title, (f"{PATH}.sequences={int(run.batch)}",), cost, 2)
