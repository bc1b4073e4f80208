"""How a run computes its loss, and Liger's kernels, in words."""

from __future__ import annotations

from collections.abc import Iterator

from ..pytorch.modelling.huggingface.liger import CROSS_ENTROPY, FUSED
from ..run.run import Run
from ..training.step.reference import BASE, COPY, PRECOMPUTED

TITLES = {
    "full_no_upcast": "loss without upcast",
    "flash_fused": "flash-attn's loss",
    "flash_fused_inplace": "flash-attn's loss in place",
    "flash_fused_no_upcast": "flash-attn's loss without upcast",
    "liger": "Liger's loss",
    "liger_fused": "Liger's fused loss",
    "chunked": "chunked loss",
    "cut": "cut cross entropy",
    "reward": "a reward model's loss",
    "te_fused": "Transformer Engine's loss",
    "megatron_fused": "Megatron's fused loss",
}
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
    if run.loss in TITLES:
        yield TITLES[run.loss]
    if run.reference:
        yield REFERENCES[run.reference]
    if run.rollout is not None:
        length = f"{run.rollout.prompt} + {run.rollout.new_tokens}"
        yield f"{run.rollout.sequences} completions of {length} tokens"
    if run.label_smoothing:
        yield f"labels smoothed by {run.label_smoothing:g}"
