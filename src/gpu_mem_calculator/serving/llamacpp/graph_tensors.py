"""The tensors of a compute graph: sizes, sources, and the tensor that each is a view of.

As in ggml, `ne` is the number of elements along each of four dimensions, the innermost first, and
`nb` the stride of each in bytes. A graph lists its tensors in the order of
ggml_build_forward_expand: the sources of a tensor come before it, from left to right.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...ledger.words import words
from ...run.weights.ggml_types import BLOCKS, UNQUANTIZED

Sizes = tuple[int, int, int, int]
# Ops that may write their result over a source (ggml-alloc.c ggml_op_can_inplace).
IN_PLACE = words("add add_id sub mul div sqr sqrt scale unary rope rms_norm soft_max fill log")
LEAF, VIEW = "", "view"


class GraphTensor:
    """One tensor of a graph.

    - `place`: the device that holds it before the graph runs (weights, cache); None: computed
    - `backend`: the device that computes it, -1 until the scheduler has assigned one
    - `buffer`, `address`: the device whose compute buffer holds it, and where
    - `view`: the tensor that owns its bytes; None: it owns them itself
    - `is_input`, `is_output`: the host writes it before the graph runs; reads it after
    - `children`, `views`: readers and views that the allocator still waits for
    - `on_gpu`: whether CUDA has a kernel for it
    - `extra`: bytes after it that its kernel uses as workspace
    """

    __slots__ = (
        *("name", "op", "kind", "ne", "nb", "sources", "view", "weight", "place", "on_gpu"),
        *("extra", "is_input", "is_output", "backend", "buffer", "address", "allocated"),
        *("children", "views"),
    )

    view: GraphTensor | None

    def __init__(
        self,
        op: str,
        kind: str,
        ne: Sizes,
        sources: Sequence[GraphTensor] = (),
        *,
        nb: Sizes | None = None,
        view: GraphTensor | None = None,
        name: str = "",
    ) -> None:
        self.op, self.kind, self.ne, self.name = op, kind, ne, name
        self.nb = nb or strides(kind, ne)
        self.sources = list(sources)
        self.view = (view.view or view) if view is not None else None
        self.place: int | None = None
        self.weight = self.is_input = self.is_output = self.allocated = False
        self.on_gpu = True
        self.backend, self.address, self.children, self.views = -1, -1, 0, 0
        self.extra, self.buffer = 0, -1

    @property
    def num_bytes(self) -> int:
        """Bytes from its first element to the end of its last."""
        ne, nb = self.ne, self.nb
        if not all(ne):
            return 0
        outer = (ne[1] - 1) * nb[1] + (ne[2] - 1) * nb[2] + (ne[3] - 1) * nb[3]
        return ne[0] * nb[0] // BLOCKS[self.kind][0] + outer

    @property
    def numel(self) -> int:
        """Number of elements."""
        return self.ne[0] * self.ne[1] * self.ne[2] * self.ne[3]

    def same_layout(self, other: GraphTensor) -> bool:
        """Whether both have the same type, sizes and strides."""
        return self.ne == other.ne and self.nb == other.nb and self.kind == other.kind


def strides(kind: str, ne: Sizes) -> Sizes:
    """The strides in bytes of a contiguous tensor."""
    block, size = BLOCKS[kind]
    row = size * (ne[0] // block)
    return size, row, row * ne[1], row * ne[1] * ne[2]


def four(sizes: Iterable[int]) -> Sizes:
    """Sizes filled up with ones to four dimensions."""
    a, b, c, d = (*sizes, 1, 1, 1)[:4]
    return a, b, c, d


def new_op(
    op: str, sizes: Iterable[int], sources: Sequence[GraphTensor] = (), kind: str = "F32"
) -> GraphTensor:
    """The result of an op: contiguous, in new memory."""
    return GraphTensor(op, kind, four(sizes), sources)


def op_like(op: str, *sources: GraphTensor) -> GraphTensor:
    """The result of an op that has the type and sizes of its first source."""
    return GraphTensor(op, sources[0].kind, sources[0].ne, sources)


def contiguous(x: GraphTensor) -> GraphTensor:
    """A contiguous copy of x, in fp32."""
    return new_op("cont", x.ne, (x,))


def graph_input(name: str, sizes: Iterable[int], kind: str) -> GraphTensor:
    """An input, which the host writes before the graph runs."""
    tensor = GraphTensor(LEAF, kind, four(sizes), name=name)
    tensor.is_input = True
    return tensor


def buffer_tensor(
    name: str, kind: str, sizes: Iterable[int], place: int, *, weight: bool
) -> GraphTensor:
    """A weight, or a tensor of the cache, in the model or KV buffer of device `place`."""
    tensor = GraphTensor(LEAF, kind, four(sizes), name=name)
    tensor.place, tensor.weight = place, weight
    return tensor


def view(of: GraphTensor, sizes: Iterable[int], nb: Sequence[int] = ()) -> GraphTensor:
    """A view of a tensor.

    `nb`: strides in bytes from the second dimension on; by default those of a contiguous tensor.
    """
    ne = four(sizes)
    contiguous = strides(of.kind, ne)
    if not nb:
        return GraphTensor(VIEW, of.kind, ne, (of,), nb=contiguous, view=of)
    outer = list(nb)
    while len(outer) < 3:
        outer.append(outer[-1] * ne[len(outer)])
    steps = (contiguous[0], outer[0], outer[1], outer[2])
    return GraphTensor(VIEW, of.kind, ne, (of,), nb=steps, view=of)


def reshape(of: GraphTensor, *sizes: int) -> GraphTensor:
    """A contiguous view with other dimensions."""
    return view(of, sizes)


def permute(of: GraphTensor, *axes: int) -> GraphTensor:
    """Dimension i becomes dimension axes[i]."""
    ne, nb = [0] * 4, [0] * 4
    for i, axis in enumerate(axes):
        ne[axis], nb[axis] = of.ne[i], of.nb[i]
    return GraphTensor(VIEW, of.kind, four(ne), (of,), nb=four(nb), view=of)


def mul_mat(weight: GraphTensor, x: GraphTensor) -> GraphTensor:
    """A matrix product: rows of the weight times rows of x."""
    return new_op("mul_mat", (weight.ne[1], x.ne[1], x.ne[2], x.ne[3]), (weight, x))


def mul_mat_id(weights: GraphTensor, x: GraphTensor, ids: GraphTensor) -> GraphTensor:
    """A matrix product of each token with the weights of its experts, `ids`."""
    return new_op("mul_mat_id", (weights.ne[1], ids.ne[0], x.ne[2]), (weights, x, ids))


def get_rows(table: GraphTensor, rows: GraphTensor) -> GraphTensor:
    """Rows of a table: integers stay I32, every other type becomes fp32."""
    kind = "I32" if table.kind == "I32" else "F32"
    sizes = (table.ne[0], rows.ne[0], rows.ne[1], rows.ne[2])
    return new_op("get_rows", sizes, (table, rows), kind)


def write_into(target: GraphTensor, *sources: GraphTensor, op: str = "set_rows") -> GraphTensor:
    """An op that writes its result into an existing tensor."""
    return GraphTensor(op, target.kind, target.ne, sources, nb=target.nb, view=target)


def quantized(kind: str) -> bool:
    """Whether a ggml type is a quantized one."""
    return kind not in UNQUANTIZED


class ComputeGraph:
    """The computed tensors in their order (`nodes`), and those that are only read (`leaves`).

    `fixed`: tensors that are assigned to a device before the graph is scheduled.
    """

    def __init__(self) -> None:
        self.nodes: list[GraphTensor] = []
        self.leaves: list[GraphTensor] = []
        self.fixed: dict[GraphTensor, int] = {}
        self._added: set[GraphTensor] = set()

    def expand(self, tensor: GraphTensor) -> GraphTensor:
        """Add a tensor after all of its sources, unless it is in the graph already."""
        if tensor in self._added:
            return tensor
        self._added.add(tensor)
        for source in tensor.sources:
            self.expand(source)
        (self.nodes if tensor.op else self.leaves).append(tensor)
        return tensor
