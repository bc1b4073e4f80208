"""Results of operations on fake tensors, where torch's own shape function is slow or missing."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import torch

DROPOUT = torch.ops.aten.native_dropout.default
LAYER_NORM = torch.ops.aten.native_layer_norm.default
GROUPED = torch.ops.aten._grouped_mm.default
COUNTS = torch.ops.aten.histc.default  # on integers, which only a GPU supports
# In-place operations that change the shape, the strides or the memory itself.
RESHAPING = frozenset(
    {
        "aten::as_strided_",
        "aten::detach_",
        "aten::resize_",
        "aten::resize_as_",
        "aten::set_",
        "aten::squeeze_",
        "aten::swapaxes_",
        "aten::swapdims_",
        "aten::t_",
        "aten::transpose_",
        "aten::unsqueeze_",
    }
)


def result(func: Any, args: Any, kwargs: Any) -> Any:
    """The result of an operation, with the right shape."""
    if in_place(func):
        return args[0] if func._schema.returns else None
    if func is GROUPED and args[0].dtype != torch.bfloat16:
        return _grouped_matmul(*args, **kwargs)
    if func is COUNTS and not args[0].is_floating_point():
        return args[0].new_empty(args[1])
    return func(*args, **kwargs)


@cache
def in_place(func: Any) -> bool:
    """Whether an operation writes into its first argument and allocates nothing.

    It is skipped: fake tensors have no values, and torch takes milliseconds where the argument is a
    list of every parameter.
    """
    name, first = func._schema.name, func._schema.arguments[:1]
    if not (name.startswith("aten::") and name.endswith("_") and first) or name in RESHAPING:
        return False
    alias = first[0].alias_info
    return alias is not None and alias.is_write


def outputs(func: Any, result: Any) -> Iterator[tuple[Any, int]]:
    """The tensors that an operation allocated, in CUDA's order, each with the factor by which it is
    larger on a GPU than on the CPU.

    Dropout makes its mask first (Dropout.cu); a layer norm's statistics are fp32 on a GPU
    (layer_norm_kernel.cu), and of the input's dtype here.
    """
    if isinstance(result, torch.Tensor):
        yield result, 1
        return
    if not isinstance(result, tuple | list):
        return
    tensors = [tensor for tensor in result if isinstance(tensor, torch.Tensor)]
    if func is DROPOUT:
        tensors.reverse()
    for index, tensor in enumerate(tensors):
        yield tensor, 4 // tensor.element_size() if func is LAYER_NORM and index else 1


def _grouped_matmul(left: Any, right: Any, offs: Any = None, *rest: Any, **kwargs: Any) -> Any:
    """Grouped matmuls of experts in other dtypes than bf16, which torch's shape function refuses
    (_meta_registrations.py, _meta_grouped_mm_common); a GPU runs the groups one by one.
    """
    shape = [left.shape[-2], right.shape[-1]]
    if left.ndim == right.ndim == 2:  # the gradient of the weights: one matrix for each group
        shape.insert(0, offs.shape[0])
    return left.new_empty(shape)
