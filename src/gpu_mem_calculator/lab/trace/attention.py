"""The attention kernel that a GPU runs, and the call of each kernel.

aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, torch 2.11: cuDNN first where it is
preferred, then flash, then the memory-efficient kernel, else the math path, which allocates every
s × s matrix.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from ...pytorch.modelling.huggingface.flash import has_flash, prefers_cudnn

aten = torch.ops.aten
CUDNN, FLASH, EFFICIENT, MATH = "cudnn", "flash", "efficient", "math"
FUSED = {
    CUDNN: aten._scaled_dot_product_cudnn_attention,
    FLASH: aten._scaled_dot_product_flash_attention,
    EFFICIENT: aten._scaled_dot_product_efficient_attention,
}
HALF = (torch.bfloat16, torch.float16)


def choose_kernel(q: Any, k: Any, v: Any, mask: Any, *, gqa: bool, compute_capability: str) -> str:
    """The kernel for tensors of shape (batch, heads, sequence, head size)."""
    half = q.dtype in HALF
    heads, size = q.shape[1], q.shape[-1]
    grouped = heads != k.shape[1] or heads != v.shape[1]
    same = size == k.shape[-1] == v.shape[-1]
    if grouped and not gqa:
        return MATH
    if half and max(size, v.shape[-1]) <= 256 and size % 8 == 0 and v.shape[-1] % 8 == 0:
        if prefers_cudnn(compute_capability):
            return CUDNN
        if has_flash(compute_capability) and same and mask is None:
            return FLASH
    if q.dtype == torch.bfloat16 and not has_flash(compute_capability):
        return MATH
    if grouped:
        return MATH
    return EFFICIENT


class AttentionKernels:
    """Counts the attention kernels that ran: (kernel, dtype, grouped heads)."""

    def __init__(self) -> None:
        self.ran: Counter[tuple[str, str, bool]] = Counter()

    def count(self, kernel: str, query: Any, *, grouped: bool) -> None:
        """Count one call of a kernel."""
        self.ran[kernel, str(query.dtype).removeprefix("torch."), grouped] += 1

    def notes(self) -> tuple[str, ...]:
        """A sentence for each costly choice of torch that torch itself does not report."""
        sentences = []
        for kernel, dtype, grouped in self.ran:
            if kernel == MATH:
                why = "fewer key-value heads than heads" if grouped else "this call"
                sentences.append(
                    f"attention runs in torch's math path, which holds every s x s map: no fused "
                    f"kernel takes {dtype} with {why}; bf16 or fp16 would"
                )
        return tuple(sentences)


def attention_for(compute_capability: str, kernels: AttentionKernels) -> Callable[..., Any]:
    """scaled_dot_product_attention as a card of this compute capability runs it."""

    def attention(
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Any:
        kernel = choose_kernel(
            query, key, value, attn_mask, gqa=enable_gqa, compute_capability=compute_capability
        )
        kernels.count(kernel, query, grouped=query.shape[1] != key.shape[1])
        mask = _additive(query, attn_mask)
        if kernel == MATH:
            return _math(query, key, value, mask, dropout_p, is_causal, scale, enable_gqa)
        if kernel == EFFICIENT and mask is not None:
            mask = mask.expand(*query.shape[:3], key.shape[2])
        trained = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
        # native_functions.yaml: mask and compute_log_sumexp, return_debug_mask
        masked = () if kernel == FLASH else (mask, trained)
        debug = () if kernel == EFFICIENT else (False,)
        arguments = (query, key, value, *masked, dropout_p, is_causal, *debug)
        return FUSED[kernel](*arguments, scale=scale)[0]

    return attention


def _additive(query: Any, mask: Any) -> Any:
    """attention.cpp convert_boolean_attn_mask: zeros and minus infinities in q's dtype."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    zero = torch.zeros((), dtype=query.dtype)
    return torch.where(mask, zero, float("-inf"))


def _math(q: Any, k: Any, v: Any, mask: Any, p: float, causal: bool, scale: Any, gqa: bool) -> Any:
    """attention.cpp _scaled_dot_product_attention_math, written out here because torch's does not
    add the mask in place to a fake tensor.
    """
    dtype, half = q.dtype, q.dtype in HALF
    fp32_q, fp32_k, fp32_v = (x.float() if half else x for x in (q, k, v))  # alive to the end
    root = (scale if scale is not None else q.shape[-1] ** -0.5) ** 0.5
    q, k, v = fp32_q * root, fp32_k, fp32_v
    if causal:
        mask = _additive(q, torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril())
    if gqa:
        k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
        v = v.repeat_interleave(q.shape[1] // v.shape[1], 1)
    scores = torch.matmul(q, k.transpose(-2, -1) * root)
    if mask is not None:
        scores.add_(mask)
    scores = aten._safe_softmax(scores, -1)
    if p > 0.0:
        scores = torch.dropout(scores, p, True)
    return torch.matmul(scores, v).to(dtype)
