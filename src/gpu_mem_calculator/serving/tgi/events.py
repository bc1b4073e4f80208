"""Tensors in the order in which they are made and freed."""

from __future__ import annotations


class StreamRecorder:
    """A stream for the allocator, as it is written."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.events: list[int] = []

    def make(self, size: int) -> int:
        """One more."""
        self.sizes.append(size)
        self.events.append(len(self.sizes) - 1)
        return len(self.sizes) - 1

    def free(self, *tensors: int) -> None:
        """No more."""
        self.events += [~tensor for tensor in tensors]
