"""Which device computes each tensor, and which tensors are copied between devices.

llama.cpp b10586 ggml/src/ggml-backend.cpp ggml_backend_sched_split_graph. Devices are numbered:
GPUs first, the host last. An op runs where its weight is; other ops follow their neighbours, those
on GPUs first. The graph is divided into splits, each on one device; a split begins with copies of
the tensors that it reads from other devices. With pipeline parallelism every copy and every input
is allocated four times.
"""

from __future__ import annotations

from .graph_tensors import LEAF, VIEW, ComputeGraph, GraphTensor

COPIES = 4  # GGML_SCHED_MAX_COPIES
OFFLOADED = 32  # with at least this many tokens a GPU runs an op whose weight is on the host
NO_BATCH = ("get_rows",)  # ggml-cuda get_op_batch_size: never offloaded


class GraphSchedule:
    """A graph divided into splits; `nodes` and `leaves` are what the allocator gets."""

    def __init__(
        self, graph: ComputeGraph, devices: int, *, pipelined: bool, offload: bool = True
    ) -> None:
        self.graph, self.host = graph, devices
        self.copies = COPIES if pipelined else 1
        self.offload = offload
        self.nodes: list[GraphTensor] = []
        self.leaves: list[GraphTensor] = []
        self._assign()
        self._expand()
        self._assign_rest()
        self._split()

    def _assign(self) -> None:
        """Assign fixed tensors, those in a buffer, inputs, and ops with a weight."""
        fixed = self.graph.fixed
        for tensor in (*self.graph.leaves, *self.graph.nodes):
            tensor.backend = fixed[tensor] if tensor in fixed else self._required_device(tensor)

    def _required_device(self, tensor: GraphTensor) -> int:
        root = tensor.view or tensor
        if root.place is not None:
            return root.place
        if tensor.is_input:
            return self.host
        if tensor.op in ("rope", "flash_attn"):
            return -1
        for source in tensor.sources:
            if source.weight and source.place is not None:
                if source.place == self.host:
                    return self._offload_device(tensor)
                return source.place if self._supports(tensor, source.place) else -1
        return -1

    def _offload_device(self, tensor: GraphTensor) -> int:
        """The first GPU that can run an op whose weight is on the host; else the host."""
        ne = tensor.ne
        batch = {"mul_mat": ne[1], "mul_mat_id": ne[2]}.get(tensor.op, ne[1] * ne[2] * ne[3])
        if self.offload and self.host and tensor.op not in NO_BATCH and batch >= OFFLOADED:
            for device in range(self.host):
                if self._supports(tensor, device):
                    return device
        return self.host

    def _supports(self, tensor: GraphTensor, device: int) -> bool:
        """Whether a device has a kernel for an op, and no source is in another GPU's buffer."""
        if device == self.host:
            return True
        return tensor.on_gpu and all(
            s.place is None or s.place in (device, self.host) for s in tensor.sources
        )

    def _expand(self) -> None:
        """Give ops without a device that of a neighbour: GPUs forward and backward, then all."""
        work = [node for node in self.graph.nodes if node.op != VIEW]
        for gpus, order in ((True, work), (True, work[::-1]), (False, work), (False, work[::-1])):
            current = -1
            for node in order:
                if node.backend != -1:
                    current = -1 if gpus and node.backend == self.host else node.backend
                elif current != -1 and self._supports(node, current):
                    node.backend = current

    def _assign_rest(self) -> None:
        """Assign the other ops to the device that has most of their sources; views to that of the
        tensor they show.
        """
        for node in self.graph.nodes:
            if node.op != VIEW and node.backend == -1:
                counts = [
                    sum(self._is_on(s, d) for s in node.sources) if self._supports(node, d) else -1
                    for d in range(self.host + 1)
                ]
                node.backend = counts.index(max(counts))
        for node in self.graph.nodes:
            if node.backend == -1 and node.view is not None:
                node.backend = node.view.backend
            for source in node.sources:
                if source.backend == -1:
                    source.backend = source.view.backend if source.view else node.backend

    def _is_on(self, tensor: GraphTensor, device: int) -> bool:
        root = tensor.view or tensor
        if root.place is not None:
            return root.place == device
        return (tensor.backend if tensor.backend != -1 else root.backend) == device

    def _split(self) -> None:
        """Start a split where the device changes, and copy what it reads from other devices."""
        inputs: list[GraphTensor] = []
        copies: dict[tuple[GraphTensor, int], list[GraphTensor]] = {}
        splits: list[tuple[int, list[GraphTensor], list[GraphTensor]]] = []
        waiting: list[GraphTensor] = []
        for node in self.graph.nodes:
            if node.op == VIEW:
                (splits[-1][2] if splits else waiting).append(node)
                continue
            device = node.backend
            if not splits or device != splits[-1][0] or self._starts_split(node, splits[-1]):
                splits.append((device, [], waiting))
                waiting = []
            for j, source in enumerate(node.sources):
                if source.is_input and self.copies > 1 and source not in inputs:
                    inputs.append(source)
                    source.is_output = True
                if not self._is_on(source, device):
                    key = (source, device)
                    if key not in copies:
                        copies[key] = [self._copy(source, device) for _ in range(self.copies)]
                        splits[-1][1].append(source)
                    node.sources[j] = copies[key][0]
            splits[-1][2].append(node)
        self._list_tensors(splits, inputs, copies)

    def _starts_split(
        self, node: GraphTensor, split: tuple[int, list[GraphTensor], list[GraphTensor]]
    ) -> bool:
        """Whether an op starts a split because it reads a weight of another device: the memory of
        earlier copies can then be reused.
        """
        if not split[1]:
            return False
        return any(s.weight and not self._is_on(s, split[0]) for s in node.sources)

    def _copy(self, source: GraphTensor, device: int) -> GraphTensor:
        copy = GraphTensor(LEAF, source.kind, source.ne, nb=source.nb, name=source.name)
        copy.backend = device
        copy.is_input = copy.is_output = self.copies > 1
        return copy

    def _list_tensors(
        self,
        splits: list[tuple[int, list[GraphTensor], list[GraphTensor]]],
        inputs: list[GraphTensor],
        copies: dict[tuple[GraphTensor, int], list[GraphTensor]],
    ) -> None:
        """List the tensors of all splits with their copies, in the order of allocation."""
        for device, sources, nodes in splits:
            for source in sources:
                keeps_alive = GraphTensor(
                    LEAF, source.kind, source.ne, (source,), nb=source.nb, view=source
                )
                keeps_alive.backend = source.backend
                self.nodes += [keeps_alive, copies[source, device][0]]
            self.nodes += nodes
        if self.copies > 1:
            for source in inputs:
                twins = [self._copy(source, source.backend) for _ in range(self.copies - 1)]
                self.leaves += [source, *twins]
            for device, sources, _ in splits:
                for source in sources:
                    self.leaves += copies[source, device]
        self.leaves += self.graph.leaves
