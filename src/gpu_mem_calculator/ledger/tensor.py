"""One logical tensor, before any engine cuts it."""

from __future__ import annotations

from msgspec import Struct

from .num import Num

Dim = tuple[str, Num]  # ("ffn", 14336): what the dimension means, and its size


class Tensor(Struct, frozen=True):
    """A name, named dimensions, and the bits of one element."""

    name: str
    dims: tuple[Dim, ...]
    bits: int = 16

    @property
    def num_elements(self) -> Num:
        """The product of the dimensions."""
        count: Num = 1
        for _, size in self.dims:
            count = count * size
        return count

    @property
    def shape(self) -> tuple[Num, ...]:
        """The sizes alone."""
        return tuple(size for _, size in self.dims)
