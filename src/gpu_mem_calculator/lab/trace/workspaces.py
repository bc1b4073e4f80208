"""Workspaces: memory that CUDA kernels allocate while they run, which fake tensors do not show.

Measured on an H200 with torch 2.11.0+cu130; the same expression holds at every size tried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from ...ledger.num import ceil_div, round_up
from ...pytorch.autograd.reductions import row_sum_workspace
from ...pytorch.modelling.huggingface.attention_kernels import flash_head_size
from ...training.step.optimizer_temps import NORM_CHUNK

aten = torch.ops.aten
Find = Callable[..., Iterator[int]]


def workspaces(func: Any, args: Any) -> Iterator[int]:
    """Bytes that an operation holds besides its inputs and outputs, one figure for each block."""
    find = TABLE.get(func)
    if find is not None:
        yield from (int(size) for size in find(*args) if size)


def _heads(q: Any) -> tuple[int, int, int, int]:
    batch, heads, seq, size = q.shape
    return batch, heads, seq, size


def cudnn_backward(grad: Any, q: Any, k: Any, v: Any, *rest: Any) -> Iterator[int]:
    """An fp32 dq with a row sum, and 256 bytes; if grouped, dk and dv of every query head."""
    batch, heads, seq, size = _heads(q)
    spread = 2 * q.numel() * q.element_size() if k.shape[1] != heads else 0
    yield batch * heads * seq * (4 * size + 4) + 256 + spread


def flash_backward(grad: Any, q: Any, k: Any, v: Any, *rest: Any) -> Iterator[int]:
    """flash_api.cpp mha_bwd: an fp32 dq and a row sum; if grouped, dk and dv of every head."""
    batch, heads, seq, size = _heads(q)
    rows = batch * round_up(seq, 128) * heads
    yield rows * 4
    yield rows * 4 * flash_head_size(size)
    if k.shape[1] != heads:
        yield q.numel() * q.element_size()
        yield q.numel() * q.element_size()


def efficient_backward(grad: Any, q: Any, k: Any, v: Any, *rest: Any) -> Iterator[int]:
    """attention_backward.cu: one fp32 number for each row; in fp32 two, and grad · out."""
    batch, heads, seq, _ = _heads(q)
    rows = batch * round_up(seq, 32) * heads
    yield rows * 4
    if q.dtype == torch.float32:
        yield rows * 4
        yield grad.numel() * 4


def row_sums(x: Any, dims: Any = None, *rest: Any) -> Iterator[int]:
    """Partial sums of the thread blocks of a reduction over rows."""
    if dims is None or x.ndim < 2:
        return
    remaining = [i for i in range(x.ndim) if i not in {d % x.ndim for d in dims}]
    if remaining == [x.ndim - 1]:
        columns = x.shape[-1]
        yield int(row_sum_workspace(x.numel() // columns, columns))


def softmax_backward(grad: Any, output: Any, *rest: Any) -> Iterator[int]:
    """SoftMax.cu softmax_backward_cuda_out: a tensor for grad × output."""
    yield grad.numel() * grad.element_size()


def foreach_norm(tensors: Any, *rest: Any) -> Iterator[int]:
    """ForeachReduceOp.cu: for each tensor, an fp32 partial norm for every chunk of the longest."""
    longest = max(one.numel() for one in tensors)
    yield 4 * len(tensors) * ceil_div(longest, NORM_CHUNK)


def safe_softmax(scores: Any, *rest: Any) -> Iterator[int]:
    """attention.cpp _safe_softmax: a boolean mask of the scores that are minus infinity."""
    yield scores.numel()


def embedding_backward(
    grad: Any, indices: Any, num_weights: int, padding: int, scale: bool
) -> Iterator[int]:
    """Embedding.cu: from 3,073 indices on, they are sorted, and each run of equal indices is summed
    in fp32 partial rows of at most 10 (EmbeddingBackwardKernel.cu).
    """
    count = indices.numel()
    if count <= 3072 and not scale:
        return
    yield from (8 * count for _ in range(5))
    partial = count // 10 + min(count, num_weights)
    yield 8 * partial
    yield partial * round_up(grad.shape[-1], 32) * 4


TABLE: dict[Any, Find] = {
    aten._scaled_dot_product_cudnn_attention_backward.default: cudnn_backward,
    aten._scaled_dot_product_flash_attention_backward.default: flash_backward,
    aten._scaled_dot_product_efficient_attention_backward.default: efficient_backward,
    aten.sum.dim_IntList: row_sums,
    aten._foreach_norm.Scalar: foreach_norm,
    aten.embedding_dense_backward.default: embedding_backward,
    aten._safe_softmax.default: safe_softmax,
    aten._softmax_backward_data.default: softmax_backward,
}
MATMULS = frozenset({aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default})
