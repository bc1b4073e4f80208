"""Grouped matmuls of fp32 experts, which a GPU does one group after another.

torch's shapes for fake tensors know bf16 only (_meta_registrations.py, _meta_grouped_mm_common);
ATen/native/cuda/GroupedBlas.cpp falls back to a matmul a group for other dtypes.
"""

from __future__ import annotations

from typing import Any

import torch

GROUPED = torch.ops.aten._grouped_mm.default


def run(func: Any, args: Any, kwargs: Any) -> Any:
    """An operation's result: its own way, or the shape of a grouped matmul in another dtype."""
    if func is not GROUPED or args[0].dtype == torch.bfloat16:
        return func(*args, **kwargs)
    left, right = args[:2]
    shape = [left.shape[-2], right.shape[-1]]
    if left.ndim == right.ndim == 2:  # the gradient of the weights: one matrix a group
        offsets = args[2] if len(args) > 2 else kwargs["offs"]
        shape.insert(0, offsets.shape[0])
    return left.new_empty(shape)
