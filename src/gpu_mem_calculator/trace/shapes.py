"""Results of operations on fake tensors, where torch's own way is slow or missing."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import torch

DROPOUT = torch.ops.aten.native_dropout.default
LAYER_NORM = torch.ops.aten.native_layer_norm.default
GROUPED = torch.ops.aten._grouped_mm.default
COUNTS = torch.ops.aten.histc.default  # of integers, which only a GPU counts
# In place, but what changes is the shape, the strides or the memory itself.
RESHAPING = frozenset({
    "aten::as_strided_", "aten::detach_", "aten::resize_", "aten::resize_as_", "aten::set_",
    "aten::squeeze_", "aten::swapaxes_", "aten::swapdims_", "aten::t_", "aten::transpose_",
    "aten::unsqueeze_",
})  # fmt: skip


def result(func: Any, args: Any, kwargs: Any) -> Any:
    """An operation's result, for the sake of its shape."""
    if in_place(func):
        return args[0] if func._schema.returns else None
    if func is GROUPED and args[0].dtype != torch.bfloat16:
        return _grouped_matmul(*args, **kwargs)
    if func is COUNTS and not args[0].is_floating_point():
        return args[0].new_empty(args[1])
    return func(*args, **kwargs)


@cache
def in_place(func: Any) -> bool:
    """Whether an operation writes into its first argument and makes nothing.

    There is nothing to write here, and torch takes milliseconds to say so where the argument is
    a list of every parameter.
    """
    name, wanted = func._schema.name, func._schema.arguments[:1]
    if not (name.startswith("aten::") and name.endswith("_") and wanted) or name in RESHAPING:
        return False
    alias = wanted[0].alias_info
    return alias is not None and alias.is_write


def outputs(func: Any, made: Any) -> Iterator[tuple[Any, int]]:
    """The tensors that an operation made, in CUDA's order, each with how many times larger it is
    there than on the CPU.

    Dropout makes its mask first (Dropout.cu); a layer norm's statistics are fp32 on a GPU
    (layer_norm_kernel.cu), and of the input's dtype here.
    """
    if isinstance(made, torch.Tensor):
        yield made, 1
        return
    if not isinstance(made, tuple | list):
        return
    tensors = [one for one in made if isinstance(one, torch.Tensor)]
    if func is DROPOUT:
        tensors.reverse()
    for at, one in enumerate(tensors):
        yield one, 4 // one.element_size() if func is LAYER_NORM and at else 1


def _grouped_matmul(left: Any, right: Any, offs: Any = None, *rest: Any, **kwargs: Any) -> Any:
    """Grouped matmuls of experts in other dtypes than bf16, which torch's shapes do not know
    (_meta_registrations.py, _meta_grouped_mm_common): a GPU does one group after another.
    """
    shape = [left.shape[-2], right.shape[-1]]
    if left.ndim == right.ndim == 2:  # the gradient of the weights: one matrix a group
        shape.insert(0, offs.shape[0])
    return left.new_empty(shape)
