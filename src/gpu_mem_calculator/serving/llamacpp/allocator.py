"""ggml's graph allocator: the address of each tensor, and the size of each compute buffer.

llama.cpp b10586 ggml/src/ggml-alloc.c: free memory is a list of blocks by address; a tensor takes
the smallest block that it fits into, the open end last. It is freed when the last tensor that
reads it has been computed. An op that can work in place reuses the memory of a source.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence

from .graph_tensors import IN_PLACE, LEAF, GraphTensor, quantized, strides

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
