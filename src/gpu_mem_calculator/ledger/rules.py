"""How an engine cuts tensors: by named dimension first, then flat across ranks."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from .mesh import Mesh
from .num import Num, ceil_div
from .tensor import Tensor


class Rules(Struct, frozen=True):
    """Cuts as data: tensor parallelism is `dims={"ffn": ("tp",), ...}`, ZeRO-1 is
    `flat={"optim": ("dp",)}`; ZeRO-2 adds gradients, ZeRO-3 parameters.
    """

    dims: Mapping[str, tuple[str, ...]] = {}
    flat: Mapping[str, tuple[str, ...]] = {}

    def local_elements(self, tensor: Tensor, mesh: Mesh) -> Num:
        """Elements of one tensor on one rank after the cuts by dimension."""
        count: Num = 1
        for dim, size in tensor.dims:
            axes = self.dims.get(dim)
            count = count * (ceil_div(size, mesh.size(axes)) if axes else size)
        return count

    def shards(self, kind: str, mesh: Mesh) -> Num:
        """Ranks over which a kind of state is spread flat."""
        return mesh.size(self.flat.get(kind, ()))
