"""bitsandbytes: dequantization of 4-bit weights, 8-bit matmuls."""

from __future__ import annotations

from functools import partial
from typing import Any

from .kernels import Measured
from .stopwatch import timed

WEIGHTS = ((2048, 2048), (8192, 2048), (4096, 4096), (14336, 4096), (8192, 8192))


def dequantize(n: int, k: int, double: bool) -> dict[str, Any]:
    """Seconds of the dequantization of a weight to bf16."""
    import bitsandbytes.functional as bnb
    import torch

    w = torch.randn(n, k, device="cuda", dtype=torch.bfloat16)
    packed, state = bnb.quantize_4bit(w, quant_type="nf4", compress_statistics=double)
    return timed(lambda: bnb.dequantize_4bit(packed, state))


def linear(kind: str, n: int, k: int, tokens: int) -> dict[str, Any]:
    """Seconds of the forward of a quantized layer."""
    import bitsandbytes as bnb
    import torch

    if kind == "nf4":
        layer = bnb.nn.Linear4bit(k, n, bias=False, compute_dtype=torch.bfloat16, quant_type="nf4")
    else:
        layer = bnb.nn.Linear8bitLt(k, n, bias=False, has_fp16_weights=False)
    layer = layer.to("cuda")
    x = torch.randn(tokens, k, device="cuda", dtype=torch.bfloat16)
    return timed(lambda: layer(x))


def points(small: bool) -> Measured:
    """Each weight."""
    for n, k in WEIGHTS[:1] if small else WEIGHTS:
        for double in (True, False):
            yield (
                {"what": "nf4_dequantize", "n": n, "k": k, "double_quant": double},
                partial(dequantize, n, k, double),
            )
        for kind in ("nf4", "int8"):
            for tokens in (512, 4096):
                yield (
                    {"what": f"{kind}_linear", "n": n, "k": k, "tokens": tokens},
                    partial(linear, kind, n, k, tokens),
                )
