"""The tensors of a compute graph: what each takes, what it reads, and what it is a view of.

Sizes run as in ggml: `ne` elements along each of four dimensions, the innermost first, and `nb`
bytes from one to the next. A graph lists its tensors in the order of ggml_build_forward_expand:
what a tensor reads comes first, from left to right.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...weights.ggml_types import BLOCKS, PLAIN

Sizes = tuple[int, int, int, int]
# Ops whose result may take the place of what they read (ggml-alloc.c ggml_op_can_inplace).
IN_PLACE = frozenset({
    "add", "add_id", "sub", "mul", "div", "sqr", "sqrt", "scale", "unary", "rope", "rms_norm",
    "soft_max", "fill", "log",
})  # fmt: skip
LEAF, VIEW = "", "view"


class GraphTensor:
    """One tensor. `place`: the device whose buffer has it before the graph runs; `view`: the
    tensor whose bytes it shows; `given` and `kept`: an input of the graph, an output of it.
    """

    __slots__ = (
        "address", "allocated", "backend", "children", "extra", "given", "held", "kept", "kind",
        "name", "nb", "ne", "on_gpu", "op", "place", "sources", "view", "views", "weight",
    )  # fmt: skip

    view: GraphTensor | None

    def __init__(
        self, op: str, kind: str, ne: Sizes, sources: Sequence[GraphTensor] = (), *,
        nb: Sizes | None = None, view: GraphTensor | None = None, name: str = "",
    ) -> None:  # fmt: skip
        self.op, self.kind, self.ne, self.name = op, kind, ne, name
        self.nb = nb or strides(kind, ne)
        self.sources = list(sources)
        self.view = (view.view or view) if view is not None else None
        self.place: int | None = None
        self.weight = self.given = self.kept = self.allocated = False
        self.on_gpu = True  # whether a GPU has a kernel for it
        self.backend, self.address, self.children, self.views = -1, -1, 0, 0
        self.extra = 0  # bytes behind it that its kernel works in
        self.held = -1  # the device whose compute buffer has it

    @property
    def num_bytes(self) -> int:
        """From its first byte to its last."""
        ne, nb = self.ne, self.nb
        if not all(ne):
            return 0
        behind = (ne[1] - 1) * nb[1] + (ne[2] - 1) * nb[2] + (ne[3] - 1) * nb[3]
        return ne[0] * nb[0] // BLOCKS[self.kind][0] + behind

    @property
    def numel(self) -> int:
        """Elements."""
        return self.ne[0] * self.ne[1] * self.ne[2] * self.ne[3]

    def alike(self, other: GraphTensor) -> bool:
        """Whether both have the same type, sizes and strides."""
        return self.ne == other.ne and self.nb == other.nb and self.kind == other.kind


def strides(kind: str, ne: Sizes) -> Sizes:
    """Bytes between neighbours of a tensor without gaps."""
    block, size = BLOCKS[kind]
    row = size * (ne[0] // block)
    return size, row, row * ne[1], row * ne[1] * ne[2]


def four(sizes: Iterable[int]) -> Sizes:
    """Sizes with ones behind them."""
    a, b, c, d = (*sizes, 1, 1, 1)[:4]
    return a, b, c, d


def new(op: str, sizes: Iterable[int], sources: Sequence[GraphTensor] = (), kind: str = "F32",
        name: str = "") -> GraphTensor:  # fmt: skip
    """The result of an op: without gaps, in its own memory."""
    return GraphTensor(op, kind, four(sizes), sources, name=name)


def alike(op: str, *sources: GraphTensor) -> GraphTensor:
    """A result of the first source's sizes."""
    return GraphTensor(op, sources[0].kind, sources[0].ne, sources)


def graph_input(name: str, sizes: Iterable[int], kind: str = "I32") -> GraphTensor:
    """What the host writes before the graph runs."""
    made = new(LEAF, sizes, kind=kind, name=name)
    made.given = True
    return made


def stored(name: str, kind: str, sizes: Iterable[int], place: int, *, weight: bool) -> GraphTensor:
    """A weight, or a part of the cache: in a buffer of its own."""
    made = new(LEAF, sizes, kind=kind, name=name)
    made.place, made.weight = place, weight
    return made


def view(of: GraphTensor, sizes: Iterable[int], nb: Sequence[int] = ()) -> GraphTensor:
    """A window on a tensor; `nb` from the second dimension on, by default as if without gaps."""
    ne = four(sizes)
    plain = strides(of.kind, ne)
    if not nb:
        return GraphTensor(VIEW, of.kind, ne, (of,), nb=plain, view=of)
    given = list(nb)
    while len(given) < 3:
        given.append(given[-1] * ne[len(given)])
    return GraphTensor(
        VIEW, of.kind, ne, (of,), nb=(plain[0], given[0], given[1], given[2]), view=of
    )


def reshape(of: GraphTensor, *sizes: int) -> GraphTensor:
    """The same bytes in other dimensions."""
    return view(of, sizes)


def permute(of: GraphTensor, *axes: int) -> GraphTensor:
    """Dimension i becomes dimension axes[i]."""
    ne, nb = [0] * 4, [0] * 4
    for i, axis in enumerate(axes):
        ne[axis], nb[axis] = of.ne[i], of.nb[i]
    return GraphTensor(VIEW, of.kind, four(ne), (of,), nb=four(nb), view=of)


def mul_mat(weight: GraphTensor, x: GraphTensor) -> GraphTensor:
    """weight x x: rows of the weight against rows of x."""
    return new("mul_mat", (weight.ne[1], x.ne[1], x.ne[2], x.ne[3]), (weight, x))


def mul_mat_id(weights: GraphTensor, x: GraphTensor, ids: GraphTensor) -> GraphTensor:
    """The same for the experts that each token has."""
    return new("mul_mat_id", (weights.ne[1], ids.ne[0], x.ne[2]), (weights, x, ids))


def get_rows(table: GraphTensor, rows: GraphTensor) -> GraphTensor:
    """Rows of a table; whole numbers stay what they are, the rest becomes fp32."""
    kind = "I32" if table.kind == "I32" else "F32"
    sizes = (table.ne[0], rows.ne[0], rows.ne[1], rows.ne[2])
    return new("get_rows", sizes, (table, rows), kind)


def written(target: GraphTensor, *sources: GraphTensor, op: str = "set_rows") -> GraphTensor:
    """An op whose result is in a tensor that is there already."""
    return GraphTensor(op, target.kind, target.ne, sources, nb=target.nb, view=target)


def quantized(kind: str) -> bool:
    """Whether a type has scales."""
    return kind not in PLAIN


class ComputeGraph:
    """Tensors in the order in which they are computed, and what they read that is not."""

    def __init__(self) -> None:
        self.nodes: list[GraphTensor] = []
        self.leaves: list[GraphTensor] = []
        self.fixed: dict[GraphTensor, int] = {}  # tensors that were told a device
        self._seen: set[GraphTensor] = set()

    def expand(self, tensor: GraphTensor) -> GraphTensor:
        """Add a tensor and all that it reads."""
        if tensor in self._seen:
            return tensor
        self._seen.add(tensor)
        for source in tensor.sources:
            self.expand(source)
        (self.nodes if tensor.op else self.leaves).append(tensor)
        return tensor
