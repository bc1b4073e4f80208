"""Microseconds of the host for one operation: dispatched, recorded for backward, and in backward.

Tensors are tiny, so the GPU is never behind for long.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

from .kernels import Measured

CHAIN = 40  # operations in a row
ROUNDS = 30


def chain_seconds(step: Callable[[Any], Any], *, grad: bool) -> dict[str, Any]:
    """The host's seconds of one operation in forward, and in backward where it is recorded."""
    import torch

    forward, backward = [], []
    for _ in range(ROUNDS):
        x = torch.randn(8, 64, device="cuda", dtype=torch.bfloat16, requires_grad=grad)
        torch.cuda.synchronize()
        begin = time.perf_counter()
        y = x
        for _ in range(CHAIN):
            y = step(y)
        forward.append(time.perf_counter() - begin)
        torch.cuda.synchronize()
        if grad:
            g = torch.ones_like(y)
            torch.cuda.synchronize()
            begin = time.perf_counter()
            torch.autograd.backward(y, g)
            backward.append(time.perf_counter() - begin)
            torch.cuda.synchronize()
    found = {"host_seconds": median(forward) / CHAIN, "low": min(forward) / CHAIN}
    if backward:
        found["backward_host_seconds"] = median(backward) / CHAIN
    return found


def table() -> dict[str, Callable[[Any], Any]]:
    """Operations from a tensor of 8 x 64 to another."""
    import torch
    from torch import nn
    from torch.nn import functional as f

    weight = torch.randn(64, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    bias = torch.randn(64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    linear = nn.Linear(64, 64, bias=False, device="cuda", dtype=torch.bfloat16)
    wide = nn.Linear(64, 64, bias=False, device="cuda", dtype=torch.float32)
    nested = nn.Sequential(nn.Identity())
    with_autocast = torch.autocast("cuda", dtype=torch.bfloat16)

    def autocast_linear(x: Any) -> Any:
        with with_autocast:
            return wide(x)

    def heads(x: Any) -> Any:
        y = x.view(1, 8, 1, 64).transpose(1, 2)
        return f.scaled_dot_product_attention(y, y, y, is_causal=True).transpose(1, 2).view(8, 64)

    return {
        "add": lambda x: x + x,
        "mul": lambda x: x * x,
        "mul_weight": lambda x: x * bias,
        "silu": f.silu,
        "pow": lambda x: x.pow(2),
        "cast": lambda x: x.to(torch.float32).to(torch.bfloat16),
        "mean_rsqrt": lambda x: x * torch.rsqrt(x.mean(-1, keepdim=True) + 1.0),
        "view_transpose": lambda x: x.view(4, 2, 64).transpose(0, 1).transpose(0, 1).view(8, 64),
        "cat": lambda x: torch.cat((x[..., 32:], x[..., :32]), -1),
        "linear_function": lambda x: f.linear(x, weight),
        "linear_bias": lambda x: f.linear(x, weight, bias),
        "linear_module": linear,
        "autocast_linear": autocast_linear,
        "module_call": nested,
        "layer_norm": lambda x: f.layer_norm(x, (64,), bias, bias),
        "sdpa": heads,
        "dropout": lambda x: f.dropout(x, 0.1),
        "softmax": lambda x: torch.softmax(x, -1),
    }


def points(small: bool) -> Measured:
    """Each operation, with and without a gradient."""
    for name, step in table().items():
        for grad in (True, False):
            yield ({"operation": name, "grad": grad}, partial(chain_seconds, step, grad=grad))
