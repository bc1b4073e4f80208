"""Kernels that read and write memory: at ten sizes from 64 KiB to 4 GiB of the main tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .kernels import Measured
from .stopwatch import timed

SIZES = tuple(2**16 * 4**i for i in range(9))  # bytes: 64 KiB to 4 GiB
WIDTH = 4096  # of a row

Make = Callable[[int], tuple[Callable[[], Any], float]]


def table() -> dict[str, Make]:
    """Each kernel by name: from elements to the call and the bytes that it must move."""
    import torch
    import torch.nn.functional as nn

    bf16, f32 = torch.bfloat16, torch.float32

    def new(n: int, dtype: Any = bf16, width: int = WIDTH) -> Any:
        return torch.randn(max(1, n // width), width, device="cuda", dtype=dtype)

    def unary(function: Callable[[Any], Any], dtype: Any, moved: float) -> Make:
        def make(n: int) -> tuple[Callable[[], Any], float]:
            x = new(n, dtype)
            return (lambda: function(x)), moved * x.numel()

        return make

    def binary(function: Callable[[Any, Any], Any], dtype: Any, moved: float) -> Make:
        def make(n: int) -> tuple[Callable[[], Any], float]:
            x, y = new(n, dtype), new(n, dtype)
            return (lambda: function(x, y)), moved * x.numel()

        return make

    weight = torch.ones(WIDTH, device="cuda", dtype=bf16)

    def rms(x: Any) -> Any:
        wide = x.to(f32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return weight * wide.to(bf16)

    def rope(x: Any) -> Any:
        half = x.shape[-1] // 2
        turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
        return x * weight + turned * weight

    def norm_backward(n: int) -> tuple[Callable[[], Any], float]:
        x, g = new(n), new(n)
        _, mean, rstd = torch.native_layer_norm(x, [WIDTH], weight, weight, 1e-5)
        back = torch.ops.aten.native_layer_norm_backward
        every = [True, True, True]
        return (lambda: back(g, x, [WIDTH], mean, rstd, weight, weight, every)), 6.0 * x.numel()

    def loss(vocab: int, backward: bool) -> Make:
        def make(n: int) -> tuple[Callable[[], Any], float]:
            x = new(n, f32, vocab).requires_grad_(backward)
            y = torch.randint(0, vocab, (x.shape[0],), device="cuda")
            if not backward:
                return (lambda: nn.cross_entropy(x, y)), 12.0 * x.numel()
            out = nn.cross_entropy(x, y)
            return (lambda: torch.autograd.grad(out, x, retain_graph=True), 12.0 * x.numel())

        return make

    def lookup(backward: bool) -> Make:
        def make(n: int) -> tuple[Callable[[], Any], float]:
            rows = max(1, n // 2048)
            ids = torch.randint(0, 32000, (rows,), device="cuda")
            if not backward:
                wide = torch.randn(32000, 2048, device="cuda", dtype=bf16)
                return (lambda: nn.embedding(ids, wide)), 4.0 * rows * 2048
            g = new(n, bf16, 2048)
            back = torch.ops.aten.embedding_dense_backward
            return (lambda: back(g, ids, 32000, -1, False)), 4.0 * rows * 2048

        return make

    return {
        "copy_bf16": unary(torch.clone, bf16, 4),
        "add_bf16": binary(torch.add, bf16, 6),
        "mul_bf16": binary(torch.mul, bf16, 6),
        "add_fp32": binary(torch.add, f32, 12),
        "add_in_place_fp32": binary(lambda x, y: x.add_(y), f32, 12),
        "silu_bf16": unary(nn.silu, bf16, 4),
        "silu_mul_bf16": binary(lambda x, y: nn.silu(x) * y, bf16, 10),
        "gelu_bf16": unary(nn.gelu, bf16, 4),
        "gelu_tanh_bf16": unary(lambda x: nn.gelu(x, approximate="tanh"), bf16, 4),
        "cast_fp32_bf16": unary(lambda x: x.to(bf16), f32, 6),
        "cast_bf16_fp32": unary(lambda x: x.to(f32), bf16, 6),
        "pow_fp32": unary(lambda x: x.pow(2), f32, 8),
        "mean_fp32": unary(lambda x: x.mean(-1, keepdim=True), f32, 4),
        "sum_rows_bf16": unary(lambda x: x.sum(0), bf16, 2),
        "rms_norm_eager_bf16": unary(rms, bf16, 40),
        "rms_norm_fused_bf16": unary(lambda x: nn.rms_norm(x, (WIDTH,), weight), bf16, 4),
        "layer_norm_bf16": unary(lambda x: nn.layer_norm(x, (WIDTH,), weight, weight), bf16, 4),
        "layer_norm_backward_bf16": norm_backward,
        "softmax_fp32": unary(lambda x: torch.softmax(x, -1), f32, 8),
        "softmax_bf16": unary(lambda x: torch.softmax(x, -1), bf16, 4),
        "rope_bf16": unary(rope, bf16, 20),
        "dropout_bf16": unary(lambda x: nn.dropout(x, 0.1), bf16, 5),
        "zero_fp32": unary(lambda x: x.zero_(), f32, 4),
        "norm_fp32": unary(torch.linalg.vector_norm, f32, 4),
        "cat_bf16": binary(lambda x, y: torch.cat((x, y), -1), bf16, 8),
        "transpose_copy_bf16": unary(lambda x: x.t().contiguous(), bf16, 4),
        "cross_entropy_32k": loss(32000, backward=False),
        "cross_entropy_backward_32k": loss(32000, backward=True),
        "cross_entropy_128k": loss(128256, backward=False),
        "cross_entropy_backward_128k": loss(128256, backward=True),
        "embedding": lookup(backward=False),
        "embedding_backward": lookup(backward=True),
    }


def points(small: bool) -> Measured:
    """Each kernel at each size."""
    import torch

    for name, make in table().items():
        width = 4 if ("fp32" in name and "bf16" not in name) or "entropy" in name else 2
        for size in SIZES[:2] if small else SIZES:
            if "entropy" in name and size < 2**20:
                continue

            def measure(make: Make = make, n: int = size // width) -> dict[str, Any]:
                call, moved = make(n)
                found = timed(call)
                del call
                if n > 2**28:
                    torch.cuda.empty_cache()
                return {**found, "bytes": moved}

            yield {"kernel": name, "size": size}, measure
