"""Operations whose result has as many rows as values say: fake values say that all are chosen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten
Call = tuple[Any, Any, dict[str, Any]]


def _nonzero(func: Any, args: Any, kwargs: Any) -> Call:
    (x,) = args
    return aten.new_empty.default, (x, [x.numel(), x.ndim]), {"dtype": torch.int64}


def _masked_select(func: Any, args: Any, kwargs: Any) -> Call:
    x, mask = args
    return aten.new_empty.default, (x, [torch.broadcast_shapes(x.shape, mask.shape).numel()]), {}


def _unique(func: Any, args: Any, kwargs: Any) -> Call:
    return aten.new_empty.default, (args[0], [args[0].numel()]), {}


def _index(func: Any, args: Any, kwargs: Any) -> Call:
    """Masks become the indices of all their elements."""
    x, indices, *rest = args
    chosen: list[Any] = []
    for index in indices:
        if index is not None and index.dtype in (torch.bool, torch.uint8):
            chosen += [
                index.new_empty([index.numel()], dtype=torch.int64) for _ in range(index.ndim)
            ]
        else:
            chosen.append(index)
    return func, (x, chosen, *rest), kwargs


SHAPES: dict[Any, Callable[[Any, Any, Any], Call]] = {
    aten.nonzero.default: _nonzero,
    aten.masked_select.default: _masked_select,
    aten.index.Tensor: _index,
    aten._unique2.default: _unique,
}
