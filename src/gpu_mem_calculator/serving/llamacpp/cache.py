"""The cache: how many cells each layer has, and what they take.

llama.cpp b10586 src/llama-context.cpp (n_ctx, n_ctx_seq), src/llama-kv-cache.cpp,
src/llama-kv-cache-iswa.cpp, src/llama-memory-recurrent.cpp.
"""

from __future__ import annotations

from msgspec import Struct

from ...model.arch import Arch
from ...model.blocks import Attention, LatentAttention, Recurrence, StateSpace
from ...weights.ggml_types import BLOCKS, bytes_of
from .graph_inputs import slides
from .graph_tensors import quantized
from .state_space import row_sizes
from .versions import NO_VALUES, PADDED_256, SLIDING_CACHE, STREAMS, WINDOW_256, WINDOW_UBATCH

ROW = 512  # CUDA pads a quantized row to so many elements


def padded(size: int, to: int) -> int:
    """Up to the next multiple."""
    return -(-size // to) * to


class CacheCells(Struct, frozen=True, kw_only=True):
    """The cells of a server: of one stream, and how many streams there are."""

    context: int  # n_ctx, of all slots
    each: int  # n_ctx_seq, the longest of one sequence
    slots: int
    streams: int
    window: int = 0  # of a layer with a sliding window

    @property
    def size(self) -> int:
        """Cells of one stream."""
        return self.context if self.streams == 1 else self.each


def cells(arch: Arch, build: int, *, context: int, slots: int, unified: bool, batch: int,
          ubatch: int, flash: bool, swa_full: bool = False) -> CacheCells:  # fmt: skip
    """How a context is divided between slots."""
    pad = 256 if build >= PADDED_256 or flash else 32
    unified = unified or build < STREAMS
    context = padded(context, pad)
    each = context if unified else padded(context // slots, pad)
    if build < PADDED_256:
        each = context // slots if unified else each
    if not unified:
        context = each * slots
    made = CacheCells(context=context, each=each, slots=slots, streams=1 if unified else slots)
    if not any(slides(arch, i) for i in range(len(arch.layers))):
        return made
    swa_full = swa_full or build < SLIDING_CACHE  # a mask of their own, all the cells
    window = max(w for w in arch.windows if w)
    rows = window * (slots if unified else 1) + (ubatch if build >= WINDOW_UBATCH else batch)
    size = made.size
    kept = padded(min(size, rows), 256) if build >= WINDOW_256 else min(size, padded(rows, pad))
    return CacheCells(context=context, each=each, slots=slots, streams=made.streams,
                 window=size if swa_full else kept)  # fmt: skip


def layer_bytes(
    arch: Arch, place: int, found: CacheCells, build: int, keys: str, values: str
) -> int:
    """What a layer keeps: its tensors of keys and of values, or its states."""
    mixer = arch.layers[place].mixer
    if isinstance(mixer, StateSpace | Recurrence):
        behind, state = row_sizes(mixer)
        return sum(padded(size * 4 * found.slots, 128) for size in (behind, state))
    if isinstance(mixer, LatentAttention):
        parts = [(keys, mixer.kv_rank + mixer.rope_dim)]
        if build < NO_VALUES:
            parts.append((values, mixer.kv_rank))
    elif isinstance(mixer, Attention):
        parts = [(keys, mixer.kv_heads * mixer.head_dim),
                 (values, mixer.kv_heads * (mixer.value_dim or mixer.head_dim))]  # fmt: skip
    else:
        return 0
    rows = found.streams * (found.window if found.window and slides(arch, place) else found.size)
    return sum(_tensor(kind, width, rows) for kind, width in parts)


def _tensor(kind: str, width: int, rows: int) -> int:
    size = bytes_of(kind, width) * rows
    if quantized(kind) and width % ROW:
        size += bytes_of(kind, ROW - width % ROW)
    return padded(size, 128)


def token_bytes(arch: Arch, places: range | tuple[int, ...], build: int, keys: str, values: str
                ) -> int:  # fmt: skip
    """One cell more in the layers that have cells for the whole context."""
    total = 0
    for place in places:
        mixer = arch.layers[place].mixer
        if isinstance(mixer, Attention):
            if not (slides(arch, place) and build >= SLIDING_CACHE):
                total += bytes_of(keys, mixer.kv_heads * mixer.head_dim)
                total += bytes_of(values, mixer.kv_heads * (mixer.value_dim or mixer.head_dim))
        elif isinstance(mixer, LatentAttention):
            total += bytes_of(keys, mixer.kv_rank + mixer.rope_dim)
            total += bytes_of(values, mixer.kv_rank) if build < NO_VALUES else 0
    return total


def whole_blocks(arch: Arch, kind: str) -> int:
    """A head size that a cache type's blocks do not divide; 0 where they all do."""
    block = BLOCKS[kind][0]
    for layer, _, _ in arch.runs:
        mixer = layer.mixer
        sizes = (mixer.head_dim, mixer.value_dim or mixer.head_dim) if isinstance(
            mixer, Attention) else (mixer.kv_rank + mixer.rope_dim,) if isinstance(
            mixer, LatentAttention) else ()  # fmt: skip
        for size in sizes:
            if size % block:
                return size
    return 0
