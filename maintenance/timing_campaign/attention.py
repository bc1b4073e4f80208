"""Causal attention, forward and backward, by kernel, length, head size and grouping."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import Any

from .kernels import Measured
from .stopwatch import timed

LENGTHS = (512, 1024, 2048, 4096, 8192, 16384, 32768)
# heads, heads of keys and values, head size
HEADS = ((32, 8, 128), (32, 32, 128), (32, 8, 64), (14, 2, 64), (12, 12, 64))
BACKENDS = {
    "default": None,
    "flash": "FLASH_ATTENTION",
    "cudnn": "CUDNN_ATTENTION",
    "efficient": "EFFICIENT_ATTENTION",
    "math": "MATH",
}
TOKENS = 8192  # of a batch, where sequences are shorter


def points(small: bool) -> Measured:
    """Batches of 1, and of 8,192 tokens."""
    for heads, kv, size in HEADS[:1] if small else HEADS:
        for length in LENGTHS[:1] if small else LENGTHS:
            for batch in sorted({1, max(1, TOKENS // length)}):
                for backend in BACKENDS:
                    if backend == "math" and (length > 2048 or batch > 1):
                        continue
                    if backend == "efficient" and length > 8192:
                        continue
                    point = {"backend": backend, "heads": heads, "kv_heads": kv, "head_size": size}
                    shape = (batch, length, heads, kv, size)
                    yield (
                        {**point, "batch": batch, "length": length},
                        partial(both, backend, shape),
                    )


def both(backend: str, shape: tuple[int, ...]) -> dict[str, Any]:
    """Seconds of forward and of backward."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    batch, length, heads, kv, size = shape

    def tensor(count: int) -> Any:
        x = torch.randn(batch, length, count, size, device="cuda", dtype=torch.bfloat16)
        return x.transpose(1, 2).requires_grad_()

    q, k, v = tensor(heads), tensor(kv), tensor(kv)
    grouped = heads != kv

    def forward() -> Any:
        return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)

    name = BACKENDS[backend]
    with sdpa_kernel([getattr(SDPBackend, name)]) if name else nullcontext():
        before = timed(forward)
        out = forward()
        node = type(out.grad_fn).__name__
        grad = torch.randn_like(out)
        after = timed(lambda: torch.autograd.grad(out, (q, k, v), grad, retain_graph=True))
    named = {f"backward_{key}": value for key, value in after.items()}
    return {**before, **named, "kernel": node}
