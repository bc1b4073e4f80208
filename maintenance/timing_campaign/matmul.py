"""Matrix multiplications in the three layouts of training, in bf16, fp16, fp32 and TF32."""

from __future__ import annotations

from functools import partial
from typing import Any

from .kernels import Measured
from .stopwatch import sustained, timed

TOKENS = (512, 1024, 2048, 4096, 8192, 16384)
# (outputs, inputs) of projections: GPT-2, Qwen2.5-0.5B, Llama-3.2-1B, 3B, 8B, 70B
WEIGHTS = (
    *((2304, 768), (3072, 768), (50257, 768)),
    *((896, 896), (4864, 896), (896, 4864), (151936, 896)),
    *((2048, 2048), (512, 2048), (8192, 2048), (2048, 8192), (128256, 2048)),
    *((3072, 3072), (8192, 3072), (3072, 8192)),
    *((4096, 4096), (1024, 4096), (14336, 4096), (4096, 14336), (11008, 4096), (128256, 4096)),
    *((8192, 8192), (28672, 8192), (8192, 28672)),
)
SUSTAINED = ((4096, 4096), (14336, 4096), (4096, 14336), (8192, 2048), (8192, 8192))
OTHERS = ((2048, 2048), (8192, 2048), (4096, 4096), (14336, 4096))
LAYOUTS = ("forward", "input", "weight")


def call_of(layout: str, tokens: int, outputs: int, inputs: int, dtype: Any) -> Any:
    """The matmul of a linear layer: its forward, its input's gradient, its weight's gradient."""
    import torch

    x = torch.randn(tokens, inputs, device="cuda", dtype=dtype)
    w = torch.randn(outputs, inputs, device="cuda", dtype=dtype)
    if layout == "forward":
        return lambda: torch.mm(x, w.t())
    y = torch.randn(tokens, outputs, device="cuda", dtype=dtype)
    return (lambda: torch.mm(y, w)) if layout == "input" else (lambda: torch.mm(y.t(), x))


def long_run(layout: str, m: int, n: int, k: int) -> dict[str, Any]:
    """Seconds of a matmul that keeps the GPU busy for 0.2 s."""
    import torch

    return {"seconds": sustained(call_of(layout, m, n, k, torch.bfloat16))}


def experts_run(x: Any, w: Any, ends: Any) -> dict[str, Any]:
    """Seconds of a grouped matmul."""
    import torch

    return timed(lambda: torch._grouped_mm(x, w.transpose(1, 2), offs=ends))


def points(small: bool) -> Measured:
    """Each shape and layout; some of them sustained, some in other dtypes, some grouped."""
    import torch

    def single(layout: str, m: int, n: int, k: int, dtype: Any) -> Any:
        return lambda: timed(call_of(layout, m, n, k, dtype), target=0.004)

    weights = WEIGHTS[:2] if small else WEIGHTS
    for n, k in weights:
        for m in TOKENS[:1] if small else TOKENS:
            if n > 40000 and m > 8192:
                continue
            for layout in LAYOUTS:
                point = {"dtype": "bf16", "layout": layout, "m": m, "n": n, "k": k}
                yield point, single(layout, m, n, k, torch.bfloat16)
    for n, k in () if small else SUSTAINED:
        for m in (2048, 8192):
            for layout in LAYOUTS:
                point = {"dtype": "bf16", "layout": layout, "m": m, "n": n, "k": k, "how": "long"}
                yield point, partial(long_run, layout, m, n, k)
    for name in ("fp32", "tf32", "fp16"):
        torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
        for n, k in OTHERS[:1] if small else OTHERS:
            for layout in LAYOUTS:
                point = {"dtype": name, "layout": layout, "m": 2048, "n": n, "k": k}
                kind = torch.float16 if name == "fp16" else torch.float32
                yield point, single(layout, 2048, n, k, kind)
    torch.backends.cuda.matmul.allow_tf32 = False
    yield from grouped(small)


def grouped(small: bool) -> Measured:
    """torch's grouped matmul of experts."""
    import torch

    for experts, tokens, n, k in ((8, 1024, 5632, 2048), (64, 256, 1408, 2048)):
        x = torch.randn(experts * tokens, k, device="cuda", dtype=torch.bfloat16)
        w = torch.randn(experts, n, k, device="cuda", dtype=torch.bfloat16)
        ends = torch.arange(1, experts + 1, device="cuda", dtype=torch.int32) * tokens
        point = {"dtype": "bf16", "layout": "grouped", "m": tokens, "n": n, "k": k}
        yield {**point, "experts": experts}, partial(experts_run, x, w, ends)
