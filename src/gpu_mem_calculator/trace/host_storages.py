"""Which storages are the host's: all others are the GPU's, and only those are played."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._pytree import tree_iter


class HostStorages:
    """The host's storages, and on which side an operation makes its results."""

    def __init__(self) -> None:
        self.host: dict[int, str] = {}  # a storage -> the operation that made it
        self._named: bool | None = None

    @contextmanager
    def making(self, *, host: bool) -> Iterator[None]:
        """What is made inside is on this side: the program has named it."""
        before, self._named = self._named, host
        try:
            yield
        finally:
            self._named = before

    def on_host(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor's memory is the host's."""
        return tensor.untyped_storage()._cdata in self.host

    def makes_host(self, args: Any, kwargs: Any) -> bool:
        """Whether an operation makes its results on the host: it says so, or all it is given is."""
        if self._named is not None:
            return self._named
        if not self.host:
            return False
        given = [one for one in tree_iter((args, kwargs)) if isinstance(one, torch.Tensor)]
        return bool(given) and all(map(self.on_host, given))
