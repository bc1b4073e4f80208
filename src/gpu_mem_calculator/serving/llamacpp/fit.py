"""The longest context with which a server fits into the memory of its GPUs.

`free` are bytes of each GPU, `outside` the bytes there that no buffer counts (context, handle).
"""

from __future__ import annotations

from msgspec.structs import replace

from .layout import ServerLayout, device_bytes, loaded_bytes

STEP = 256  # tokens


def fits(layout: ServerLayout, free: int, outside: int) -> bool:
    """Whether every GPU has enough memory; weights and cache often decide it alone."""
    weights, caches = loaded_bytes(layout)
    if any(weight + cache > free for weight, cache in zip(weights[:-1], caches, strict=False)):
        return False
    used = device_bytes(layout, whole=False)[:-1]
    return all(one.total + (outside if one.total else 0) <= free for one in used)


def longest_context(layout: ServerLayout, free: int, outside: int) -> int:
    """The longest context that fits, up to the model's, in steps of 256; 0 where none does."""
    low, high = 0, max(layout.context, layout.file.arch.max_seq_len) // STEP
    while low < high:
        middle = (low + high + 1) // 2
        fit = fits(replace(layout, context=STEP * middle), free, outside)
        low, high = (middle, high) if fit else (low, middle - 1)
    return STEP * low
