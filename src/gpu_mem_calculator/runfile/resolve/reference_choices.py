"""A reference model: the key of a run file, resolved and checked."""

from __future__ import annotations

from collections.abc import Iterator

from ...run.engine import Engine
from ...run.run import Run
from ...training.losses import LOSSES, PER_TOKEN
from ...training.step.reference import BASE, COPY, PRECOMPUTED
from ..config import TrainingConfig


def reference_kind(config: TrainingConfig) -> str:
    """The run's reference model. With adapters, it is the model itself while they are off."""
    if config.reference_model == PRECOMPUTED:
        return PRECOMPUTED
    if config.reference_model:
        return BASE if config.lora is not None else COPY
    return ""


def reference_problems(run: Run, config: TrainingConfig, engine: Engine) -> Iterator[str]:
    """A sentence for each setting that is not modelled."""
    if not run.reference:
        return
    what = f"training.reference_model={str(config.reference_model).lower()}"
    if engine.name != "pytorch_ddp":
        fix = "use engine pytorch_ddp, or set it to false"
        yield f"{what} is not modelled under {engine.title}; {fix}"
    elif not LOSSES[run.loss].per_token:
        yield f"{what} needs loss {PER_TOKEN!r}, TRL's log-probabilities; set training.loss to it"
