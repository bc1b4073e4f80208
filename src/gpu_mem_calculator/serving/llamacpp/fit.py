"""The nearest settings with which a server fits into the memory of its GPUs.

`free` are bytes of each GPU, `outside` the bytes there that no buffer counts (context, handle).
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from ...model.blocks import Moe
from .layout import ServerLayout, device_bytes, loaded_bytes


def fits(layout: ServerLayout, free: int, outside: int) -> bool:
    """Whether every GPU has enough memory; weights and cache often decide it alone."""
    weights, caches = loaded_bytes(layout)
    if any(weight + cache > free for weight, cache in zip(weights[:-1], caches, strict=False)):
        return False
    used = device_bytes(layout, whole=False)[:-1]
    return all(one.total + (outside if one.total else 0) <= free for one in used)


def _largest(most: int, fit: Callable[[int], bool]) -> int:
    """The largest number up to `most` that fits, by bisection; 0 where none does."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fit(middle) else (low, middle - 1)
    return low


def most_layers(layout: ServerLayout, free: int, outside: int) -> int | None:
    """The largest -ngl with which the server fits; None where it does not with 0."""
    if not fits(replace(layout, gpu_layers=0), free, outside):
        return None
    most = len(layout.file.arch.layers) + 1
    return _largest(most, lambda n: fits(replace(layout, gpu_layers=n), free, outside))


def fewest_on_host(layout: ServerLayout, free: int, outside: int) -> int | None:
    """The smallest --n-cpu-moe with which the server fits.

    None where the model has no experts, or where it does not fit with all of them on the host.
    """
    layers = layout.file.arch.layers
    if not any(isinstance(layer.mlp, Moe) for layer in layers):
        return None
    low, high = layout.host_experts, len(layers)
    if not fits(replace(layout, host_experts=high), free, outside):
        return None
    while low < high:
        middle = (low + high) // 2
        fit = fits(replace(layout, host_experts=middle), free, outside)
        low, high = (low, middle) if fit else (middle + 1, high)
    return low


def longest_context(layout: ServerLayout, free: int, outside: int) -> int:
    """The longest context with which the server fits, in steps of 256; 0 where none does."""
    most = layout.context // 256
    return 256 * _largest(most, lambda n: fits(replace(layout, context=256 * n), free, outside))
