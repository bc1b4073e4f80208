"""The compute buffers that a server reserves: its largest graph, scheduled and allocated
(llama.cpp b10586 src/llama-context.cpp sched_reserve).

Scheduled: which device computes each tensor, and which tensors are copied between devices
(ggml/src/ggml-backend.cpp ggml_backend_sched_split_graph). Devices are numbered: GPUs first, the
host last. An op runs where its weight is; other ops follow their neighbours, those on GPUs first.
The graph is divided into splits, each on one device; a split begins with copies of the tensors that
it reads from other devices. With pipeline parallelism every copy and every input is allocated four
times.

Allocated: the address of each tensor, and the size of each compute buffer (ggml/src/ggml-alloc.c).
Free memory is a list of blocks by address; a tensor takes the smallest block that it fits into, the
open end last. It is freed when the last tensor that reads it has been computed. An op that can work
in place reuses the memory of a source.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence

from msgspec.structs import replace

from ...ledger.remember import remembered
from ...models.arch.arch import Arch
from .graph import graph
from .graph_inputs import GraphBuilder, GraphRun, LayerDevices, slides
from .graph_tensors import IN_PLACE, LEAF, VIEW, ComputeGraph, GraphTensor, quantized, strides
from .versions import FEW_DECODED, MANY_DECODED
from .weights import ModelFile

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
            return next((d for d in range(self.host) if self._supports(tensor, d)), self.host)
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
                layout = source.kind, source.ne
                keeps_alive = GraphTensor(LEAF, *layout, (source,), nb=source.nb, view=source)
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


ENDLESS = 1 << 62
ROW_PADDING = 512  # ggml-cuda: elements to which rows of quantized matrices are padded


class BufferSpace:
    """One device's compute buffer while it is planned; `peak` is its size in bytes."""

    def __init__(self, alignment: int) -> None:
        self.alignment = alignment
        self.blocks: list[list[int]] = [[0, ENDLESS]]  # [address, bytes], by address
        self.peak = 0

    def pad(self, size: int) -> int:
        """A size rounded up to the alignment."""
        return -(-size // self.alignment) * self.alignment

    def allocate(self, size: int) -> int:
        """Allocate `size` bytes in the smallest free block that is large enough; its address."""
        size = self.pad(size)
        blocks = self.blocks
        best, least = len(blocks) - 1, ENDLESS * 2
        for i in range(len(blocks) - 1):
            if size <= blocks[i][1] <= least:
                best, least = i, blocks[i][1]
        block = blocks[best]
        address = block[0]
        block[0] += size
        block[1] -= size
        if not block[1]:
            del blocks[best]
        self.peak = max(self.peak, address + size)
        return address

    def free(self, address: int, size: int) -> None:
        """Free `size` bytes and merge them with free neighbours."""
        size = self.pad(size)
        blocks = self.blocks
        for i, block in enumerate(blocks):
            if block[0] + block[1] == address:
                block[1] += size
                if i + 1 < len(blocks) and block[0] + block[1] == blocks[i + 1][0]:
                    block[1] += blocks[i + 1][1]
                    del blocks[i + 1]
                return
            if address + size == block[0]:
                block[0], block[1] = address, block[1] + size
                if i and blocks[i - 1][0] + blocks[i - 1][1] == address:
                    blocks[i - 1][1] += block[1]
                    del blocks[i]
                return
        insort(blocks, [address, size])


def buffer_bytes(tensor: GraphTensor, device: int, host: int) -> int:
    """Bytes that a tensor takes in a device's compute buffer."""
    size = tensor.num_bytes
    if device != host:
        size += tensor.extra
        over = tensor.ne[0] % ROW_PADDING
        if over and quantized(tensor.kind):
            size += strides(tensor.kind, (ROW_PADDING - over, 1, 1, 1))[1]
    return size


class GraphAllocation:
    """The allocation of one graph on all devices."""

    def __init__(self, devices: int, host_alignment: int = 32, alignment: int = 128) -> None:
        self.host = devices
        on_gpus = (BufferSpace(alignment) for _ in range(devices))
        self.spaces = [*on_gpus, BufferSpace(host_alignment)]

    def run(self, leaves: Sequence[GraphTensor], nodes: Sequence[GraphTensor]) -> list[int]:
        """Bytes of each device's buffer, the host's last."""
        for tensor in (*leaves, *nodes):
            tensor.children = tensor.views = 0
            tensor.allocated = False
        for tensor in leaves:
            self._place(tensor, tensor.backend)
        for node in nodes:
            if node.view is not None and node.op != LEAF:
                node.view.views += 1
            for source in node.sources:
                source.children += 1
                if source.is_input:
                    self._place(source, node.backend)
        for node in nodes:
            for source in node.sources:
                self._place(source, node.backend)
            self._place(node, node.backend)
            for source in node.sources:
                self._release(source)
        return [space.peak for space in self.spaces]

    def _bytes(self, tensor: GraphTensor) -> int:
        return buffer_bytes(tensor, tensor.buffer, self.host)

    def _place(self, tensor: GraphTensor, device: int) -> None:
        if tensor.allocated or tensor.place is not None or tensor.view is not None:
            return
        tensor.allocated = True
        if tensor.op in IN_PLACE and self._reuse_source(tensor):
            return
        tensor.buffer = device
        tensor.address = self.spaces[device].allocate(self._bytes(tensor))

    def _reuse_source(self, tensor: GraphTensor) -> bool:
        """Put a tensor over the first source that nothing else reads; False where there is none."""
        for source in tensor.sources:
            if not source.allocated or source.is_output or not tensor.same_layout(source):
                continue  # a view is never allocated itself, so its memory is not reused
            if source.children == 1 and not source.views:
                tensor.buffer, tensor.address = source.buffer, source.address
                source.allocated = False
                return True
        return False

    def _release(self, source: GraphTensor) -> None:
        source.children -= 1
        if source.children or source.views:
            return
        root = source.view
        if root is not None:
            root.views -= 1
            if root.views or root.children:
                return
        root = root or source
        if root.allocated and not root.is_output:
            self.spaces[root.buffer].free(root.address, self._bytes(root))
            root.allocated = False


EACH_END = 2  # equal layers of a device that a sample has of each end


@remembered(256, always=True)
def compute_buffers(
    file: ModelFile, setting: GraphRun, devices: LayerDevices, *, whole: bool = False
) -> tuple[int, ...]:
    """Bytes of each device's compute buffer, the host's last.

    Without `whole` the graph has a sample of the layers: the result is within a few percent.
    """
    kinds = file.kinds()
    every = whole or not setting.offload_kqv
    places = range(len(file.arch.layers)) if every else sample_layers(file.arch, devices, kinds)

    def sizes(batch: GraphRun) -> tuple[int, ...]:
        whole_graph = graph(GraphBuilder(file.arch, batch, devices, kinds), places)
        schedule = GraphSchedule(whole_graph, devices.gpus, pipelined=devices.pipelined)
        return tuple(GraphAllocation(devices.gpus).run(schedule.leaves, schedule.nodes))

    if not MANY_DECODED <= setting.build < FEW_DECODED:
        return sizes(setting)
    return tuple(map(max, sizes(setting), sizes(replace(setting, tokens=1))))


def sample_layers(arch: Arch, devices: LayerDevices, kinds: dict[str, str]) -> list[int]:
    """A sample of the layers: of equal ones on a device the first and the last EACH_END."""
    types: dict[str, list[str]] = {}
    moved: dict[str, list[tuple[str, int]]] = {}
    for name, device in devices.moved:
        number, _, tensor = name.removeprefix("blk.").partition(".")
        moved.setdefault(number, []).append((tensor, device))
    if devices.host in devices.layers or moved:  # weights are copied to a GPU
        for name, kind in kinds.items():
            types.setdefault(name.removeprefix("blk.").partition(".")[0], []).append(kind)
    groups: dict[object, list[int]] = {}
    for place, layer in enumerate(arch.layers):
        device, elsewhere = devices.layers[place], tuple(moved.get(str(place), ()))
        copied = device == devices.host or elsewhere
        weights = tuple(types.get(str(place), ())) if copied else ()
        key = (device, elsewhere, id(layer), slides(arch, place), weights)
        groups.setdefault(key, []).append(place)
    ends = ((*group[:EACH_END], *group[-EACH_END:]) for group in groups.values())
    return sorted({place for end in ends for place in end} | {len(arch.layers) - 1})
