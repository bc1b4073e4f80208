"""The storages in host memory; all others are on the GPU, and only those are replayed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._pytree import tree_iter


class HostStorages:
    """The host's storages, and whether an operation allocates on the host or on the GPU."""

    def __init__(self) -> None:
        self.host: dict[int, str] = {}  # storage -> the operation that allocated it
        self._named: bool | None = None

    @contextmanager
    def making(self, *, host: bool) -> Iterator[None]:
        """Allocations inside are on the host or on the GPU, as the program named the device."""
        before, self._named = self._named, host
        try:
            yield
        finally:
            self._named = before

    def on_host(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is in host memory."""
        return tensor.untyped_storage()._cdata in self.host

    def makes_host(self, args: Any, kwargs: Any) -> bool:
        """Whether an operation allocates on the host: it names it, or all its tensors are there."""
        if self._named is not None:
            return self._named
        if not self.host:
            return False
        tensors = [one for one in tree_iter((args, kwargs)) if isinstance(one, torch.Tensor)]
        return bool(tensors) and all(map(self.on_host, tensors))
