"""Where ggml puts the tensors of a graph, and so how large each device's compute buffer is.

llama.cpp b10586 ggml/src/ggml-alloc.c: free memory is a list of blocks by address; a tensor takes
the smallest block it fits in, the open end last. It goes when the last tensor that reads it is
computed. An op that can work in place takes over the memory of what it reads.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence

from .graph_tensors import IN_PLACE, LEAF, GraphTensor, quantized, strides

ENDLESS = 1 << 62
ROW_PADDING = 512  # ggml-cuda: rows of quantized matrices are padded to so many elements


class BufferSpace:
    """One device's memory, without an upper end."""

    def __init__(self, alignment: int) -> None:
        self.alignment = alignment
        self.blocks: list[list[int]] = [[0, ENDLESS]]  # [address, bytes], by address
        self.most = 0

    def padded(self, size: int) -> int:
        """A size up to the next address that a tensor may have."""
        return -(-size // self.alignment) * self.alignment

    def take(self, size: int) -> int:
        """The address of the smallest block that is large enough."""
        size = self.padded(size)
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
        self.most = max(self.most, address + size)
        return address

    def give(self, address: int, size: int) -> None:
        """Free memory joins its free neighbours."""
        size = self.padded(size)
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


def on_device(tensor: GraphTensor, device: int, host: int) -> int:
    """Bytes of a tensor in a device's buffer."""
    size = tensor.num_bytes
    if device != host:
        size += tensor.extra
        over = tensor.ne[0] % ROW_PADDING
        if over and quantized(tensor.kind):
            size += strides(tensor.kind, (ROW_PADDING - over, 1, 1, 1))[1]
    return size


class GraphAllocation:
    """One walk over a graph."""

    def __init__(self, devices: int, host_alignment: int = 32, alignment: int = 128) -> None:
        self.host = devices
        self.spaces = [BufferSpace(alignment) for _ in range(devices)] + [
            BufferSpace(host_alignment)
        ]

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
                if source.given:
                    self._place(source, node.backend)
        for node in nodes:
            for source in node.sources:
                self._place(source, node.backend)
            self._place(node, node.backend)
            for source in node.sources:
                self._read(source)
        return [space.most for space in self.spaces]

    def _bytes(self, tensor: GraphTensor) -> int:
        return on_device(tensor, tensor.held, self.host)

    def _place(self, tensor: GraphTensor, device: int) -> None:
        if tensor.allocated or tensor.place is not None or tensor.view is not None:
            return
        tensor.allocated = True
        if tensor.op in IN_PLACE and self._taken_over(tensor):
            return
        tensor.held = device
        tensor.address = self.spaces[device].take(self._bytes(tensor))

    def _taken_over(self, tensor: GraphTensor) -> bool:
        """Put a tensor where one of those it reads is, if that one is not needed any more."""
        for source in tensor.sources:
            if not source.allocated or source.kept or not tensor.alike(source):
                continue  # a view is never allocated itself, so nothing takes its place
            if source.children == 1 and not source.views:
                tensor.held, tensor.address = source.held, source.address
                source.allocated = False
                return True
        return False

    def _read(self, source: GraphTensor) -> None:
        source.children -= 1
        if source.children or source.views:
            return
        root = source.view
        if root is not None:
            root.views -= 1
            if root.views or root.children:
                return
        root = root or source
        if root.allocated and not root.kept:
            self.spaces[root.held].give(root.address, self._bytes(root))
            root.allocated = False
