"""Liger's layer kernels on fake tensors: what their wrappers allocate (liger-kernel 0.8.5 ops/)."""

from __future__ import annotations

from typing import Any

import torch


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
