"""Writes the allocations and frees of tensors, in order."""

from __future__ import annotations


class StreamRecorder:
    """Sizes and events of an allocation stream; event n allocates tensor n, ~n frees it."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.events: list[int] = []

    def allocate(self, size: int) -> int:
        """Allocate a tensor of `size` bytes; its number is returned."""
        self.sizes.append(size)
        self.events.append(len(self.sizes) - 1)
        return len(self.sizes) - 1

    def free(self, *tensors: int) -> None:
        """Free tensors by their numbers."""
        self.events += [~tensor for tensor in tensors]
