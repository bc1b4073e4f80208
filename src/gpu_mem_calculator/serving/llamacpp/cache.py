"""The cache: the cells of each layer, and their bytes.

llama.cpp b10586 src/llama-context.cpp (n_ctx, n_ctx_seq), src/llama-kv-cache.cpp,
src/llama-kv-cache-iswa.cpp, src/llama-memory-recurrent.cpp.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from ...models.arch.arch import Arch
from ...models.arch.blocks import Attention, LatentAttention, Mixer, Recurrence, StateSpace
from ...run.weights.ggml_types import BLOCKS, ggml_bytes
from .graph_inputs import slides
from .graph_tensors import quantized
from .state_space import row_sizes
from .versions import LATENT, NO_VALUES, SLIDING_CACHE

ROW = 512  # elements to which CUDA pads a quantized row


def pad(size: int, to: int) -> int:
    """A size rounded up to a multiple of `to`."""
    return -(-size // to) * to


class CacheCells(Struct, frozen=True, kw_only=True):
    """How a server's context is divided; one cell holds one token of one layer.

    - `context`: n_ctx, tokens of all slots together
    - `sequence`: n_ctx_seq, tokens of the longest sequence
    - `streams`: separate caches: 1 where all slots share one
    - `window`: cells of one stream in layers with a sliding window; 0: there are none
    """

    context: int
    sequence: int
    slots: int
    streams: int
    window: int = 0

    @property
    def size(self) -> int:
        """Cells of one stream in the other layers."""
        return self.context if self.streams == 1 else self.sequence


def layer_bytes(
    arch: Arch, place: int, cells: CacheCells, build: int, keys: str, values: str
) -> int:
    """Bytes of one layer's cache: its keys and values, or its states."""
    mixer = arch.layers[place].mixer
    if isinstance(mixer, StateSpace | Recurrence):
        return sum(pad(size * 4 * cells.slots, 128) for size in row_sizes(mixer))
    rows, parts = layer_rows(arch, place, cells), cached_widths(mixer, build, keys, values)
    return sum(_tensor_bytes(kind, width, rows) for kind, width in parts)


def layer_rows(arch: Arch, place: int, cells: CacheCells) -> int:
    """Cells of one layer."""
    return cells.streams * (cells.window if cells.window and slides(arch, place) else cells.size)


def cached_widths(mixer: Mixer | None, build: int, keys: str, values: str) -> list[tuple[str, int]]:
    """ggml's type and the elements of a cell's keys and of its values."""
    sizes = head_sizes(mixer)
    if isinstance(mixer, LatentAttention) and build >= NO_VALUES:
        return [(keys, sizes[0])]
    if isinstance(mixer, LatentAttention) and build < LATENT:  # those of every head
        sizes = (mixer.nope_dim + mixer.rope_dim, mixer.value_dim)
    heads = mixer.heads if isinstance(mixer, LatentAttention) and build < LATENT else 1
    heads = mixer.kv_heads if isinstance(mixer, Attention) else heads
    return [(kind, heads * size) for kind, size in zip((keys, values), sizes, strict=False)]


def head_sizes(mixer: Mixer | None) -> tuple[int, ...]:
    """Elements of a head's key and of its value, as they are cached; of other mixers nothing."""
    if isinstance(mixer, LatentAttention):
        return mixer.kv_rank + mixer.rope_dim, mixer.kv_rank
    if isinstance(mixer, Attention):
        return mixer.head_dim, mixer.value_dim or mixer.head_dim
    return ()


def _tensor_bytes(kind: str, width: int, rows: int) -> int:
    size = ggml_bytes(kind, width) * rows
    if quantized(kind) and width % ROW:
        size += ggml_bytes(kind, ROW - width % ROW)
    return pad(size, 128)


def token_bytes(arch: Arch, places: Sequence[int], build: int, keys: str, values: str) -> int:
    """Bytes of one more token of context in the layers at `places`; windows do not grow with it."""
    return sum(
        ggml_bytes(kind, width)
        for place in places
        if not (slides(arch, place) and build >= SLIDING_CACHE)
        for kind, width in cached_widths(arch.layers[place].mixer, build, keys, values)
    )


def indivisible_head(arch: Arch, kind: str) -> int:
    """The first head size that a cache type's blocks do not divide; 0 where they divide all."""
    mixers = (layer.mixer for layer, _, _ in arch.runs)
    ends = ((head_sizes(one), 1 if isinstance(one, LatentAttention) else 2) for one in mixers)
    sizes = (size for of_head, keys in ends for size in of_head[:keys])  # latents are keys
    return next((size for size in sizes if size % BLOCKS[kind][0]), 0)
