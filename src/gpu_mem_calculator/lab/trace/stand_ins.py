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
from ..jobs.losses import IGNORED, LOSSES, logits_loss, next_labels
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
        if run.loss in ON_HIDDEN:
            model.forward = MethodType(partial(_forward, ON_HIDDEN[run.loss], run), model)
        elif run.loss in ON_LOGITS:
            model.loss_function = partial(logits_loss, ON_LOGITS[run.loss])
        elif run.loss in LOSSES:
            LOSSES[run.loss](model, run)

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


def _liger_fused(hidden: Any, weight: Any, labels: Any, run: Run) -> Any:
    return LigerFusedLoss.apply(hidden.view(-1, hidden.shape[-1]), weight, next_labels(labels))


def _chunked(hidden: Any, weight: Any, labels: Any, run: Run) -> Any:
    """trl 1.16.0 trainer/utils.py add_fused_lm_head. Fake values choose no tokens, so all are
    chosen by their indices.
    """
    hidden, labels = hidden[:, :-1], labels[:, 1:]
    rows, columns = len(hidden), run.labelled or hidden.shape[1]
    index = [torch.zeros(rows * columns, dtype=torch.int64, device=hidden.device) for _ in "01"]
    picked, targets = hidden[index[0], index[1]], labels[index[0], index[1]]
    each = ChunkedLoss.apply(picked, weight, targets, run.loss_chunk)
    return -each.sum() / len(picked)


def _cut(hidden: Any, weight: Any, labels: Any, run: Run) -> Any:
    if torch.is_autocast_enabled(hidden.device.type):
        hidden = hidden.to(torch.get_autocast_dtype(hidden.device.type))
    return CutLoss.apply(hidden.flatten(0, 1), weight, labels[:, 1:].flatten())


def _flash(logits: Any, labels: Any, *, in_place: bool, upcast: bool = True) -> Any:
    losses = FlashLoss.apply(logits.float() if upcast else logits, labels, in_place)
    return losses.sum() / (labels != IGNORED).sum()


ON_HIDDEN = {"liger_fused": _liger_fused, "chunked": _chunked, "cut": _cut}
ON_LOGITS: dict[str, Callable[[Any, Any], Any]] = {
    "liger": lambda logits, labels: LigerLoss.apply(logits.float(), labels),
    "flash_fused": partial(_flash, in_place=False),
    "flash_fused_inplace": partial(_flash, in_place=True),
    "flash_fused_no_upcast": partial(_flash, in_place=False, upcast=False),
}
