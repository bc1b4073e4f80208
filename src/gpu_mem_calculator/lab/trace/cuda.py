"""CUDA's kernels, registered over the CPU's while a trace runs.

torch chooses kernels by device. The functions here are registered under the CPU's dispatch keys:
attention as a GPU chooses it, dropout and RMS norm in one kernel, autocast with CUDA's lists. Calls
from C++ reach them, too.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from ...tools.translation.arguments import tables
from .attention import HALF, AttentionKernels, attention_for

aten = torch.ops.aten

# aten/src/ATen/autocast_mode.h, AT_FORALL_FP32 and AT_FORALL_FP32_SET_OPT_DTYPE: operations
# that run in fp32 under CUDA's autocast, and that the CPU's autocast does not list.
IN_FP32: dict[str, list[str]] = tables(__file__)["fp32"]


@contextmanager
def as_on_cuda(compute_capability: str, kernels: AttentionKernels) -> Iterator[None]:
    """Make torch choose kernels as on a card of this compute capability; undone at the end."""
    library = torch.library.Library("aten", "IMPL")
    overrides = {
        "scaled_dot_product_attention": attention_for(compute_capability, kernels),
        "dropout": _dropout,
        "rms_norm": _rms_norm,
        "softmax.int": partial(_softmax, aten._softmax.default),
        "log_softmax.int": partial(_softmax, aten._log_softmax.default),
    }
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns that a kernel is replaced
            for name, function in overrides.items():
                library.impl(name, function, "AutogradCPU")
            for name in IN_FP32["inputs"]:
                library.impl(name, _in_fp32(name), "AutocastCPU")
            for name in IN_FP32["results"]:
                library.impl(name, _to_fp32(name), "AutocastCPU")
            library.impl("cross_entropy_loss", _cross_entropy, "AutocastCPU")
        yield
    finally:
        library._destroy()


def _dropout(x: Any, p: float, train: bool) -> Any:
    """dropout.cpp: one kernel, which saves a mask of one byte for each element."""
    if not train or p == 0.0 or x.numel() == 0:
        return x
    return aten.native_dropout(x, p, train)[0]


class _FusedRmsNorm(torch.autograd.Function):
    """CUDA's _fused_rms_norm, which the CPU lacks: it saves its input and one fp32 number per row.
    Values are not computed: a trace's tensors have none.
    """

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, shape: Any) -> Any:
        """The normed tensor."""
        rows = x.shape[: x.dim() - len(shape)]
        ctx.save_for_backward(x, weight, x.new_empty(rows, dtype=torch.float32))
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Gradients of input and weight."""
        x, weight, _ = ctx.saved_tensors
        return torch.empty_like(x), None if weight is None else torch.empty_like(weight), None


def _rms_norm(x: Any, shape: Any, weight: Any = None, eps: float | None = None) -> Any:
    """layer_norm.cpp rms_norm_symint: the fused kernel wherever it exists."""
    return _FusedRmsNorm.apply(x, weight, shape)


def _softmax(kernel: Any, x: Any, dim: int, dtype: Any = None) -> Any:
    """SoftMax.cpp: from fp16 to fp32 in one kernel, without a copy."""
    if x.dtype == torch.float16 and dtype == torch.float32:
        return kernel(x, dim, True)
    return kernel(x if dtype is None else x.to(dtype), dim, False)


def _cross_entropy(
    x: Any,
    target: Any,
    weight: Any = None,
    reduction: int = 1,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Any:
    """LossNLL.cpp cross_entropy_loss, whose two parts CUDA's autocast treats one by one. Smoothed
    labels and class probabilities run in fp32.
    """
    if label_smoothing or x.shape == target.shape:
        loss = aten.cross_entropy_loss
        rest = (target, weight, reduction, ignore_index, label_smoothing)
        return _without_autocast(lambda: loss(_widen(x), *rest))
    log_softmax = aten.log_softmax.int(x, 0 if x.dim() == 1 else 1, x.dtype)
    return aten.nll_loss_nd(log_softmax, target, weight, reduction, ignore_index)


def _operator(name: str) -> Any:
    base, _, overload = name.partition(".")
    return getattr(getattr(aten, base), overload or "default")


def _without_autocast(call: Callable[[], Any]) -> Any:
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
    with torch._C._ExcludeDispatchKeyGuard(keys):
        return call()


def _widen(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.dtype in HALF and value.device.type == "cpu":
        return value.float()
    if isinstance(value, list | tuple):
        return type(value)(_widen(one) for one in value)
    return value


def _in_fp32(name: str) -> Callable[..., Any]:
    """The operation with its 16-bit inputs converted to fp32."""
    operator = _operator(name)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        named = {name: _widen(value) for name, value in kwargs.items()}
        return _without_autocast(lambda: operator(*map(_widen, args), **named))

    return kernel


def _to_fp32(name: str) -> Callable[..., Any]:
    """The operation with an fp32 result for 16-bit inputs, unless the caller names a dtype."""
    operator = _operator(name)

    def kernel(x: Any, *args: Any, **kwargs: Any) -> Any:
        dtype = kwargs.get("dtype")
        half = x.dtype in HALF
        if half and dtype is None and not any(isinstance(a, torch.dtype) for a in args):
            kwargs["dtype"] = torch.float32
        return _without_autocast(lambda: operator(x, *args, **kwargs))

    return kernel
