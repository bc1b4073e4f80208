"""How a run computes its loss, and Liger's kernels, in words."""

from __future__ import annotations

from collections.abc import Iterator

from ..pytorch.modelling.huggingface.liger import CROSS_ENTROPY, FUSED
from ..run.run import Run
from ..training.losses import LOSSES
from ..training.step.reference import BASE, COPY, PRECOMPUTED

REFERENCES = {
    COPY: "a reference model",
    BASE: "the base model as reference",
    PRECOMPUTED: "a reference computed before",
}


def loss_words(run: Run) -> Iterator[str]:
    """Liger's kernels, the loss and smoothed labels; nothing for the framework's own loss."""
    kernels = [name for name in run.liger if name not in (CROSS_ENTROPY, FUSED)]
    if kernels:
        yield f"Liger's {', '.join(kernels)}"
    if LOSSES[run.loss].title:
        yield LOSSES[run.loss].title
    if run.reference:
        yield REFERENCES[run.reference]
    if run.rollout is not None:
        length = f"{run.rollout.prompt} + {run.rollout.new_tokens}"
        yield f"{run.rollout.sequences} completions of {length} tokens"
    if run.label_smoothing:
        yield f"labels smoothed by {run.label_smoothing:g}"
