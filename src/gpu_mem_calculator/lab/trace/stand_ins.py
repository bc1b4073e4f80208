"""Gives a traced model functions that allocate as the run's kernels do, without a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import MethodType
from typing import Any

import torch

from ...pytorch.modelling.huggingface.liger import IN_PLACE, TORCH, LigerKernels, liger_kernels
from ...run.run import Run
from ...training.losses import LOSSES, TRANSFORMERS
from ..jobs.losses import IGNORED, logits_loss, next_labels, use_loss
from .liger_kernels import Gate, NormKernel, rotate
from .loss_kernels import ChunkedLoss, CutLoss, FlashLoss, LigerFusedLoss, LigerLoss

ROTARY = "apply_rotary_pos_emb"


@contextmanager
def stand_ins() -> Iterator[Callable[[Any, Run], None]]:
    """A function that changes a model; what it changes outside the model is undone at the end."""
    changed: dict[str, tuple[Any, Any]] = {}

    def apply(model: Any, run: Run) -> None:
        kernels = liger_kernels(run.arch.family, run.liger)
        if kernels.rope:
            module = __import__(type(model).__module__, fromlist=[ROTARY])
            changed.setdefault(module.__name__, (module, getattr(module, ROTARY)))
            setattr(module, ROTARY, rotate)
        for name, module in model.named_modules():
            _change(name, module, kernels, run.multiprocessors)
        row = LOSSES[run.loss]
        if not row.stand_in:
            use_loss(model, run)
        elif row.kernels[TRANSFORMERS].reads == "weight":
            own = globals()[row.stand_in]
            model.forward = MethodType(partial(_forward, own, run), model)
        else:
            model.loss_function = partial(logits_loss, globals()[row.stand_in])

    try:
        yield apply
    finally:
        for module, function in changed.values():
            setattr(module, ROTARY, function)


def _change(name: str, module: Any, kernels: LigerKernels, multiprocessors: int) -> None:
    kind, last = type(module).__name__, name.rpartition(".")[2]
    if kind.endswith("RMSNorm"):
        place = kernels.attention_norms if last in ("q_norm", "k_norm") else kernels.layer_norms
        place = kernels.head_norm if name == "model.norm" else place
        if place != TORCH:
            numbers = (place == IN_PLACE, multiprocessors)
            module.forward = lambda x: NormKernel.apply(x, module.weight, *numbers)
    elif kind.endswith("MLP") and kernels.gate:
        module.forward = MethodType(_fused_mlp if hasattr(module, "gate_up_proj") else _mlp, module)


def _mlp(self: Any, x: Any) -> Any:
    return self.down_proj(Gate.apply(self.gate_proj(x), self.up_proj(x)))


def _fused_mlp(self: Any, x: Any) -> Any:
    up = self.gate_up_proj(x)
    gate, up = up.chunk(2, dim=-1)
    return self.down_proj(Gate.apply(gate, up))


def _forward(
    loss: Callable[..., Any], run: Run, self: Any, *args: Any, labels: Any = None, **kwargs: Any
) -> Any:
    """A causal model's forward with a loss of its last hidden states."""
    hidden = self.base_model(*args, **kwargs).last_hidden_state
    return {"loss": loss(hidden, self.get_output_embeddings().weight, labels, run)}


def liger_fused(hidden: Any, weight: Any, labels: Any, run: Run) -> Any:
    """Liger's fused loss of each token's label."""
    return LigerFusedLoss.apply(hidden.view(-1, hidden.shape[-1]), weight, next_labels(labels))


def chunked(hidden: Any, weight: Any, labels: Any, run: Run) -> Any:
    """trl 1.16.0 trainer/utils.py add_fused_lm_head. Fake values choose no tokens, so all are
    chosen by their indices.
    """
    hidden, labels = hidden[:, :-1], labels[:, 1:]
    rows, columns = len(hidden), run.labelled or hidden.shape[1]
    index = [torch.zeros(rows * columns, dtype=torch.int64, device=hidden.device) for _ in "01"]
    picked, targets = hidden[index[0], index[1]], labels[index[0], index[1]]
    each = ChunkedLoss.apply(picked, weight, targets, run.loss_chunk)
    return -each.sum() / len(picked)


def cut(hidden: Any, weight: Any, labels: Any, run: Run) -> Any:
    """cut-cross-entropy of hidden states in autocast's dtype."""
    if torch.is_autocast_enabled(hidden.device.type):
        hidden = hidden.to(torch.get_autocast_dtype(hidden.device.type))
    return CutLoss.apply(hidden.flatten(0, 1), weight, labels[:, 1:].flatten())


def liger(logits: Any, labels: Any) -> Any:
    """Liger's cross entropy of fp32 logits."""
    return LigerLoss.apply(logits.float(), labels)


def flash(logits: Any, labels: Any, *, upcast: bool = True, in_place: bool = False) -> Any:
    """flash-attn's cross entropy of fp32 logits, or of logits as they are."""
    losses = FlashLoss.apply(logits.float() if upcast else logits, labels, in_place)
    return losses.sum() / (labels != IGNORED).sum()


flash_in_place = partial(flash, in_place=True)
flash_no_upcast = partial(flash, upcast=False)
