"""Which device computes each tensor, and what has to be copied from one to another.

llama.cpp b10586 ggml/src/ggml-backend.cpp ggml_backend_sched_split_graph. Devices are numbered:
GPUs first, the host last. An op runs where its weight is; the rest follows its neighbours, GPUs
before the host. Where a tensor is read on another device a stretch of the graph (a split) begins
with its copy. With pipeline parallelism every copy and every input is there four times.
"""

from __future__ import annotations

from .graph_tensors import LEAF, VIEW, ComputeGraph, GraphTensor

COPIES = 4  # GGML_SCHED_MAX_COPIES
OFFLOADED = 32  # a GPU takes an op over from the host from so many tokens on
NO_BATCH = ("get_rows",)  # ggml-cuda get_op_batch_size: never taken over


class GraphSchedule:
    """A graph cut into splits."""

    def __init__(self, graph: ComputeGraph, devices: int, *, pipelined: bool, offload: bool = True
                 ) -> None:  # fmt: skip
        self.graph, self.host = graph, devices
        self.copies = COPIES if pipelined else 1
        self.offload = offload
        self.nodes: list[GraphTensor] = []
        self.leaves: list[GraphTensor] = []
        self._assign()
        self._expand()
        self._settle()
        self._split()

    def _assign(self) -> None:
        """Ops whose device is known: told, in a buffer, an input, or with a weight."""
        fixed = self.graph.fixed
        for tensor in (*self.graph.leaves, *self.graph.nodes):
            tensor.backend = fixed[tensor] if tensor in fixed else self._known(tensor)

    def _known(self, tensor: GraphTensor) -> int:
        root = tensor.view or tensor
        if root.place is not None:
            return root.place
        if tensor.given:
            return self.host
        if tensor.op in ("rope", "flash_attn"):
            return -1
        for source in tensor.sources:
            if source.weight and source.place is not None:
                if source.place == self.host:
                    return self._taken(tensor)
                return source.place if self._runs(tensor, source.place) else -1
        return -1

    def _taken(self, tensor: GraphTensor) -> int:
        """The GPU that takes an op with a weight on the host, else the host."""
        ne = tensor.ne
        batch = {"mul_mat": ne[1], "mul_mat_id": ne[2]}.get(tensor.op, ne[1] * ne[2] * ne[3])
        if self.offload and self.host and tensor.op not in NO_BATCH and batch >= OFFLOADED:
            for device in range(self.host):
                if self._runs(tensor, device):
                    return device
        return self.host

    def _runs(self, tensor: GraphTensor, device: int) -> bool:
        """Whether a device has a kernel for an op, and nothing it reads is in another GPU."""
        if device == self.host:
            return True
        return tensor.on_gpu and all(
            s.place is None or s.place in (device, self.host) for s in tensor.sources
        )

    def _expand(self) -> None:
        """Neighbours follow: GPUs down and up, then the rest."""
        work = [node for node in self.graph.nodes if node.op != VIEW]
        for gpus, order in ((True, work), (True, work[::-1]), (False, work), (False, work[::-1])):
            current = -1
            for node in order:
                if node.backend != -1:
                    current = -1 if gpus and node.backend == self.host else node.backend
                elif current != -1 and self._runs(node, current):
                    node.backend = current

    def _settle(self) -> None:
        """What no neighbour could take goes where most of what it reads is; views to their own."""
        for node in self.graph.nodes:
            if node.op != VIEW and node.backend == -1:
                found = [sum(self._at(s, d) for s in node.sources) if self._runs(node, d) else -1
                         for d in range(self.host + 1)]  # fmt: skip
                node.backend = found.index(max(found))
        for node in self.graph.nodes:
            if node.backend == -1 and node.view is not None:
                node.backend = node.view.backend
            for source in node.sources:
                if source.backend == -1:
                    source.backend = source.view.backend if source.view else node.backend

    def _at(self, tensor: GraphTensor, device: int) -> bool:
        root = tensor.view or tensor
        where = root.place if root.place is not None else (
            tensor.backend if tensor.backend != -1 else root.backend)  # fmt: skip
        return where == device

    def _split(self) -> None:
        """Walk the graph; where the device changes copy what is read from elsewhere."""
        inputs: list[GraphTensor] = []
        copied: dict[tuple[GraphTensor, int], list[GraphTensor]] = {}
        splits: list[tuple[int, list[GraphTensor], list[GraphTensor]]] = []
        waiting: list[GraphTensor] = []
        for node in self.graph.nodes:
            if node.op == VIEW:
                (splits[-1][2] if splits else waiting).append(node)
                continue
            device = node.backend
            if not splits or device != splits[-1][0] or self._begins(node, splits[-1]):
                splits.append((device, [], waiting))
                waiting = []
            for j, source in enumerate(node.sources):
                if source.given and self.copies > 1 and source not in inputs:
                    inputs.append(source)
                    source.kept = True
                if not self._at(source, device):
                    key = (source, device)
                    if key not in copied:
                        copied[key] = [self._copy(source, device) for _ in range(self.copies)]
                        splits[-1][1].append(source)
                    node.sources[j] = copied[key][0]
            splits[-1][2].append(node)
        self._listed(splits, inputs, copied)

    def _begins(
        self, node: GraphTensor, split: tuple[int, list[GraphTensor], list[GraphTensor]]
    ) -> bool:
        """A weight from elsewhere begins a split of its own, so that its copies go early."""
        if not split[1]:
            return False
        return any(s.weight and not self._at(s, split[0]) for s in node.sources)

    def _copy(self, source: GraphTensor, device: int) -> GraphTensor:
        made = GraphTensor(LEAF, source.kind, source.ne, nb=source.nb, name=source.name)
        made.backend = device
        made.given = made.kept = self.copies > 1
        return made

    def _listed(
        self,
        splits: list[tuple[int, list[GraphTensor], list[GraphTensor]]],
        inputs: list[GraphTensor],
        copied: dict[tuple[GraphTensor, int], list[GraphTensor]],
    ) -> None:
        """The graph with its copies, as it is allocated."""
        for device, sources, nodes in splits:
            for source in sources:
                until = GraphTensor(
                    LEAF, source.kind, source.ne, (source,), nb=source.nb, view=source
                )
                until.backend = source.backend
                self.nodes += [until, copied[source, device][0]]
            self.nodes += nodes
        if self.copies > 1:
            for source in inputs:
                twins = [self._copy(source, source.backend) for _ in range(self.copies - 1)]
                self.leaves += [source, *twins]
            for device, sources, _ in splits:
                for source in sources:
                    self.leaves += copied[source, device]
        self.leaves += self.graph.leaves
