"""Losses with kernels of their own on fake tensors: what their wrappers allocate."""

from __future__ import annotations

from typing import Any

import torch

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
