"""How an engine cuts tensors: by named dimension."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from .mesh import Mesh
from .num import Num, ceil_div

Dim = tuple[str, Num]  # ("ffn", 14336): what a dimension means, and its size


class Rules(Struct, frozen=True):
    """Cuts as data: tensor parallelism is `{"ffn": ("tp",), "heads": ("tp",), ...}`."""

    dims: Mapping[str, tuple[str, ...]]

    def local_elements(self, dims: tuple[Dim, ...], mesh: Mesh) -> Num:
        """Elements of a tensor with these dimensions on one rank, after the cuts."""
        count: Num = 1
        for dim, size in dims:
            axes = self.dims.get(dim)
            count = count * (ceil_div(size, mesh.size(axes)) if axes else size)
        return count
