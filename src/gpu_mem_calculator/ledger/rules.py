"""How an engine shards tensors: by named dimension."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from .mesh import Mesh
from .num import Num, ceil_div

Dim = tuple[str, int]  # a dimension's name and size: ("ffn", 14336)


class Rules(Struct, frozen=True):
    """The axes that shard each dim, for instance `{"ffn": ("tp",), "heads": ("tp",), ...}`."""

    dims: Mapping[str, tuple[str, ...]]

    def local_elements(self, dims: tuple[Dim, ...], mesh: Mesh) -> Num:
        """Elements of one rank's shard of a tensor with these dims."""
        count: Num = 1
        for dim, size in dims:
            axes = self.dims.get(dim)
            count = count * (ceil_div(size, mesh.size(axes)) if axes else size)
        return count
