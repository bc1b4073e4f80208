"""The evaluation between steps: the keys of a run file, resolved and checked."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from ...run.engine import Engine
from ...run.evaluation import Evaluation
from ...run.run import Run
from ...training.losses import LOSSES
from ..evaluation_config import EvaluationConfig

PATH = "training.evaluation"


def with_evaluation(run: Run, given: EvaluationConfig | None) -> Run:
    """The run with its evaluation, whose sequences are as long as the run's unless given."""
    if given is None:
        return run
    kept = min(given.batches, given.accumulation_steps or given.batches)
    found = Evaluation(
        batch=given.batch_size, seq=given.seq_len or run.seq, kept=kept if given.keep_logits else 0
    )
    return replace(run, evaluation=found)


def evaluation_problems(run: Run, given: EvaluationConfig | None, engine: Engine) -> Iterator[str]:
    """One sentence for each run whose evaluation is not modelled."""
    if given is None:
        return
    if given.accumulation_steps is not None and not given.keep_logits:
        yield f"{PATH}.accumulation_steps is for logits that are kept; set keep_logits to true"
    others = {
        "a model whose record is read": run.record is not None,
        "training.compile": bool(run.compile),
        "training.reference_model": bool(run.reference),
        "training.generation": run.rollout is not None,
        f"training.zero_grad={run.zero_grad!r}": run.zero_grad != "after_step",
        f"training.loss={run.loss!r}": not LOSSES[run.loss].evaluates,
        f"engine {engine.name!r}": engine.name != "pytorch_ddp",
    }
    for name in (name for name, there in others.items() if there):
        yield f"{PATH} is not modelled with {name}; leave one of them out"
