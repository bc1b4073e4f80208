"""Optimizer steps over parameters in fp32 and bf16, and the clipping before them."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

from .kernels import Measured

SIZES = (10**8, 10**9, 4 * 10**9)  # parameters
PIECES = (16, 150, 600)  # tensors that they are in
STEPS = 5


def tensors(size: int, count: int, dtype: Any) -> list[Any]:
    """Parameters with gradients."""
    import torch

    each = size // count
    params = [
        torch.nn.Parameter(torch.zeros(each, device="cuda", dtype=dtype)) for _ in range(count)
    ]
    for one in params:
        one.grad = torch.full_like(one, 1e-3)
    return params


def seconds_of(call: Callable[[], Any]) -> dict[str, Any]:
    """Median seconds of a call that is waited for, and the host's part of it."""
    import torch

    call()
    call()
    whole, host = [], []
    for _ in range(STEPS):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        call()
        host.append(time.perf_counter() - begin)
        torch.cuda.synchronize()
        whole.append(time.perf_counter() - begin)
    return {
        "seconds": median(whole),
        "low": min(whole),
        "high": max(whole),
        "host_seconds": median(host),
    }


def torch_step(size: int, count: int, dtype: Any, **choice: Any) -> dict[str, Any]:
    """A step of torch's AdamW, or of SGD."""
    import torch

    params = tensors(size, count, dtype)
    kind = getattr(torch.optim, choice.pop("kind", "AdamW"))
    found = seconds_of(kind(params, lr=1e-5, **choice).step)
    params.clear()
    torch.cuda.empty_cache()
    return found


def clip_step(size: int, count: int, dtype: Any) -> dict[str, Any]:
    """Clipping by norm."""
    import torch

    clip, params = torch.nn.utils.clip_grad_norm_, tensors(size, count, dtype)
    found = seconds_of(partial(clip, params, 1.0, foreach=True))
    params.clear()
    torch.cuda.empty_cache()
    return found


def bitsandbytes_step(name: str, size: int, count: int, dtype: Any) -> dict[str, Any]:
    """A step of an optimizer of bitsandbytes."""
    import bitsandbytes
    import torch

    params = tensors(size, count, dtype)
    found = seconds_of(getattr(bitsandbytes.optim, name)(params, lr=1e-5).step)
    params.clear()
    torch.cuda.empty_cache()
    return found


def fused_adam_step(size: int, count: int, dtype: Any) -> dict[str, Any]:
    """A step of DeepSpeed's FusedAdam."""
    import torch
    from deepspeed.ops.adam import FusedAdam

    params = tensors(size, count, dtype)
    found = seconds_of(FusedAdam(params, lr=1e-5).step)
    params.clear()
    torch.cuda.empty_cache()
    return found


def points(small: bool) -> Measured:
    """Each optimizer at each size."""
    import torch

    f32, bf16 = torch.float32, torch.bfloat16
    sizes = ((10**6, 4),) if small else tuple(zip(SIZES, PIECES, strict=True))
    many = () if small else ((10**8, 300), (10**9, 1000))
    for size, count in (*sizes, *many):
        for name, dtype in (("fp32", f32), ("bf16", bf16)):
            point = {"parameters": size, "tensors": count, "dtype": name}
            args = (size, count, dtype)
            for how in ("foreach", "fused", "forloop"):
                choice = {"fused": True} if how == "fused" else {"foreach": how == "foreach"}
                yield (
                    {"optimizer": "adamw", "implementation": how, **point},
                    partial(torch_step, *args, **choice),
                )
            for momentum in (0.0, 0.9):
                yield (
                    {
                        "optimizer": "sgd",
                        "implementation": "foreach",
                        "momentum": momentum,
                        **point,
                    },
                    partial(torch_step, *args, kind="SGD", momentum=momentum, foreach=True),
                )
            yield {"optimizer": "clip", **point}, partial(clip_step, *args)
            if size <= 10**9:
                yield (
                    {"optimizer": "adafactor", "implementation": "foreach", **point},
                    partial(torch_step, *args, kind="Adafactor", foreach=True),
                )
                for name8 in ("AdamW8bit", "PagedAdamW8bit", "Lion8bit"):
                    yield ({"optimizer": name8, **point}, partial(bitsandbytes_step, name8, *args))
            yield {"optimizer": "deepspeed_fused", **point}, partial(fused_adam_step, *args)
