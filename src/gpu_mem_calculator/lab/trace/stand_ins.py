"""Gives a traced model functions that allocate as the run's kernels do, without a GPU.

Liger's layer kernels (liger-kernel 0.8.5 ops/) and losses with kernels of their own: what their
wrappers allocate on fake tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib import import_module
from types import MethodType
from typing import Any
from unittest.mock import patch

import torch

from ...pytorch.modelling.huggingface.liger import IN_PLACE, TORCH, LigerKernels, liger_kernels
from ...run.run import Run
from ...training.losses import LOSSES, TRANSFORMERS
from ..jobs.losses import IGNORED, logits_loss, next_labels, use_loss

TOKEN_CHUNK = 4096  # trl 1.16.0 kernels/chunked_logprob.py
FP32 = torch.float32


def _compute_dtype(x: Any) -> Any:
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


class LigerFusedLoss(torch.autograd.Function):
    """liger-kernel 0.8.5 ops/fused_linear_cross_entropy.py, on a card from Ampere on."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, targets: Any) -> Any:
        """Both gradients are computed here, chunk by chunk, and saved."""
        tokens, hidden = x.shape
        parts = -(-weight.shape[0] // hidden)
        chunk = min(1 << (-(-tokens // parts) - 1).bit_length(), tokens)
        grad_x = torch.zeros_like(x)
        grad_weight = torch.zeros_like(weight) if weight.requires_grad else None
        losses = torch.zeros(tokens, dtype=FP32, device=x.device)
        mask = targets != -100
        direct = x.dtype == weight.dtype == _compute_dtype(x)
        buffer = x.new_empty(chunk, weight.shape[0]) if direct else None
        for start in range(0, tokens, chunk):
            part = x[start : start + chunk]
            if buffer is not None:
                logits = buffer[: len(part)]
                torch.mm(part, weight.t(), out=logits)
                torch.mm(logits, weight, out=grad_x[start : start + chunk])
            else:
                logits = part @ weight.t()
                grad_x[start : start + chunk] = logits @ weight
            if grad_weight is not None and logits.dtype == FP32:
                grad_weight += torch.mm(logits.t(), part).float()
            elif grad_weight is not None:
                part = part.to(logits.dtype)  # addmm into grad_weight
            del logits, part
        del buffer, mask
        ctx.save_for_backward(grad_x, grad_weight)
        return torch.sum(losses)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """What was saved, times the loss's gradient, in place."""
        return (*ctx.saved_tensors, None)


class LigerLoss(torch.autograd.Function):
    """liger-kernel 0.8.5 ops/cross_entropy.py: the logits become their gradient in forward."""

    @staticmethod
    def forward(ctx: Any, logits: Any, targets: Any) -> Any:
        """The logits' memory is saved."""
        losses = torch.zeros(len(logits), dtype=logits.dtype, device=logits.device)
        ctx.save_for_backward(logits.detach())
        return torch.sum(losses)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """The gradient was computed in forward."""
        return (*ctx.saved_tensors, None)


class FlashLoss(torch.autograd.Function):
    """flash-attn 2.8.3 flash_attn/ops/triton/cross_entropy.py."""

    @staticmethod
    def forward(ctx: Any, logits: Any, targets: Any, in_place: bool) -> Any:
        """The logits are saved with one number for each token."""
        losses, lse, _ = (
            torch.empty(len(logits), dtype=FP32, device=logits.device) for _ in range(3)
        )
        ctx.save_for_backward(logits, lse, targets)
        ctx.in_place = in_place
        return losses

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """The gradient is new, or overwrites the logits."""
        logits, *_ = ctx.saved_tensors
        return logits if ctx.in_place else torch.empty_like(logits), None, None


class ChunkedLoss(torch.autograd.Function):
    """trl 1.16.0 kernels/chunked_logprob.py ChunkedLogProbFunction."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, targets: Any, width: int) -> Any:
        """Logits are computed tile by tile."""
        dtype, count = _compute_dtype(x), len(x)
        numbers = [torch.zeros(count, dtype=FP32, device=x.device) for _ in range(7)]
        tile = torch.empty(min(count, TOKEN_CHUNK), width, dtype=dtype, device=x.device)
        for start in range(0, count, TOKEN_CHUNK):
            part = x[start : start + TOKEN_CHUNK].to(dtype)
            for first in range(0, len(weight), width):
                rows = weight[first : first + width].to(dtype)
                torch.mm(part, rows.t(), out=tile[: len(part), : len(rows)])
                del rows
        log_z = numbers[0] + torch.log(numbers[1])
        ctx.save_for_backward(x, weight, targets, log_z)
        ctx.dtype, ctx.width = dtype, width
        return numbers[2] - log_z

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Both gradients are summed in fp32, then cast."""
        x, weight, *_ = ctx.saved_tensors
        dtype, width, grad_weight = ctx.dtype, ctx.width, None
        grad_x = torch.zeros(x.shape, dtype=FP32, device=x.device)
        if ctx.needs_input_grad[1]:
            grad_weight = torch.zeros(weight.shape, dtype=FP32, device=x.device)
        tile = torch.empty(min(len(x), TOKEN_CHUNK), width, dtype=dtype, device=x.device)
        for start in range(0, len(x), TOKEN_CHUNK):
            part = x[start : start + TOKEN_CHUNK].to(dtype)
            for first in range(0, len(weight), width):
                rows = weight[first : first + width].to(dtype)
                torch.mm(part, rows.t(), out=tile[: len(part), : len(rows)])
        whole = None if grad_weight is None else grad_weight.to(weight.dtype)
        return grad_x.to(x.dtype), whole, None, None


class CutLoss(torch.autograd.Function):
    """cut-cross-entropy 25.1.1 cce.py LinearCrossEntropyFunction."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, targets: Any) -> Any:
        """No logits; a mean logit for each vocabulary entry orders the backward."""
        valids = torch.empty(len(targets), dtype=torch.int64, device=x.device)
        lse = torch.empty(len(targets), dtype=FP32, device=x.device)
        average = torch.empty(len(weight), dtype=FP32, device=x.device)
        losses = torch.zeros(len(targets), dtype=FP32, device=x.device)
        ctx.save_for_backward(x, weight, lse, targets, valids, average)
        return losses.mean()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """The weight's gradient has the input's dtype, then its own."""
        x, weight, *_, average = ctx.saved_tensors
        order = torch.argsort(average).to(torch.int32)
        grad_x, grad_weight = torch.zeros_like(x), None
        if ctx.needs_input_grad[1]:
            grad_weight = torch.zeros_like(weight, dtype=x.dtype).to(weight.dtype)
        del order
        return grad_x, grad_weight, None


class NormKernel(torch.autograd.Function):
    """rms_norm.py LigerRMSNormFunction; `multiprocessors` sum the weight's gradient in fp32."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, in_place: bool, multiprocessors: int) -> Any:
        """One fp32 number for each row is saved with the input."""
        x = x.contiguous()
        y = torch.empty_like(x)
        rstd = torch.empty(x.numel() // x.shape[-1], dtype=torch.float32, device=x.device)
        ctx.save_for_backward(x, weight, rstd)
        ctx.in_place, ctx.multiprocessors = in_place, multiprocessors
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """The input's gradient may overwrite the output's."""
        x, weight, _ = ctx.saved_tensors
        dy, dw = grads[0].contiguous(), None
        if ctx.needs_input_grad[1]:
            shape = (ctx.multiprocessors, x.shape[-1])
            parts = torch.empty(shape, dtype=torch.float32, device=x.device)
        dx = dy if ctx.in_place else torch.zeros_like(dy)
        if ctx.needs_input_grad[1]:
            dw = parts.sum(dim=0).to(weight.dtype)
        return dx.view(dy.shape), dw, None, None


class Gate(torch.autograd.Function):
    """swiglu.py LigerSiLUMulFunction, geglu.py LigerGELUMulFunction."""

    @staticmethod
    def forward(ctx: Any, gate: Any, up: Any) -> Any:
        """Both inputs are saved."""
        gate, up = gate.contiguous(), up.contiguous()
        ctx.save_for_backward(gate, up)
        return torch.empty_like(gate)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Both are overwritten with their gradients."""
        gate, up = ctx.saved_tensors
        return gate.view(gate.shape), up.view(up.shape)


class Rotary(torch.autograd.Function):
    """rope.py LigerRopeFunction: q and k are turned in place, and so are their gradients."""

    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, cos: Any, sin: Any) -> Any:
        """q and k are copied where they are not stored token by token."""
        ctx.save_for_backward(cos.contiguous(), sin.contiguous())
        return tuple(x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """The same for the gradients."""
        turned = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in grads)
        return (*turned, None, None)


def rotate(q: Any, k: Any, cos: Any, sin: Any, *_: Any, **__: Any) -> Any:
    """transformers' apply_rotary_pos_emb by Liger's kernel."""
    return Rotary.apply(q, k, cos, sin)


ROTARY = "apply_rotary_pos_emb"


@contextmanager
def stand_ins() -> Iterator[Callable[[Any, Run], None]]:
    """A function that changes a model; what it changes outside the model is undone at the end."""

    def apply(model: Any, run: Run) -> None:
        kernels = liger_kernels(run.arch.family, run.liger)
        if kernels.rope:
            stack.enter_context(patch.object(import_module(type(model).__module__), ROTARY, rotate))
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

    with ExitStack() as stack:
        yield apply


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
