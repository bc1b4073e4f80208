"""Conversion of modules of fake tensors, which torch does not convert like real ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def convertible_modules() -> Iterator[None]:
    """`module.to(dtype)` works on parameters that something else refers to weakly.

    torch swaps a fake parameter with its converted copy, and refuses where there is a weak
    reference; fake tensors always have one. A real parameter is not swapped and keeps its
    attributes, such as those of ZeRO-3.
    """
    swap_tensors = torch.utils.swap_tensors

    def swap(one: Any, other: Any) -> None:
        try:
            swap_tensors(one, other)
        except RuntimeError:
            _swap_by_hand(one, other)
        for name, value in vars(other).items():
            vars(one).setdefault(name, value)

    torch.utils.swap_tensors = swap
    try:
        yield
    finally:
        torch.utils.swap_tensors = swap_tensors


def _swap_by_hand(one: Any, other: Any) -> None:
    one.__class__, other.__class__ = other.__class__, one.__class__
    one.__dict__, other.__dict__ = other.__dict__, one.__dict__
    torch._C._swap_tensor_impl(one, other)
