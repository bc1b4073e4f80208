"""How many columns of an activation hold a number above the threshold of LLM.int8.

bitsandbytes 0.50.2 backends/cuda/ops.py int8_vectorwise_quant: a column with one such number, of
any token, is multiplied unquantized, and saved so. In trained models these are few columns, in
which all tokens are large. In newly initialised ones every number is a draw: a norm returns a mean
square of 1, so a projection of `hidden` inputs with weights of standard deviation s returns a
normal distribution of standard deviation s · sqrt(hidden). From it follows that of the MLP's
inner activations, the only ones that are often above 6.
"""

from __future__ import annotations

from collections.abc import Callable
from math import erf, erfc, exp, expm1, log1p, pi, sqrt, tanh

from ...models.arch.arch import Arch
from ...models.arch.blocks import Mlp

SPREAD = 0.02  # the default of initializer_range in transformers' configurations
STEPS, REACH = 2_000, 9.0  # of the integral over a normal distribution, in standard deviations


def outlier_share(arch: Arch, threshold: float, tokens: int, spread: float = SPREAD) -> float:
    """The share of the MLP's inner columns with an outlier, of newly initialised weights; `spread`:
    the weights' standard deviation.
    """
    blocks = [layer.mlp for layer, _, _ in arch.runs if isinstance(layer.mlp, Mlp)]
    if not blocks or threshold <= 0:
        return 0.0
    chance = outlier_chance(blocks[0], spread * sqrt(arch.hidden), threshold)
    return -expm1(tokens * log1p(-chance)) if chance < 1 else 1.0


def outlier_chance(block: Mlp, spread: float, threshold: float) -> float:
    """The chance that one inner activation is above the threshold; `spread`: of a projection."""
    curve = ACTIVATIONS[block.activation]
    total, width = 0.0, 2 * REACH / STEPS
    for step in range(STEPS + 1):
        z = -REACH + step * width
        active = abs(curve(z * spread))
        total += exp(-z * z / 2) * _above(active, spread, threshold, gated=block.gated)
    return total * width / sqrt(2 * pi)


def _above(active: float, spread: float, threshold: float, *, gated: bool) -> float:
    """The chance that the gate's activation, times an up projection if gated, is above it."""
    if not gated:
        return float(active >= threshold)
    return erfc(threshold / (active * spread * sqrt(2))) if active else 0.0


def _silu(x: float) -> float:
    return x / (1 + exp(-x)) if x > -500 else 0.0


def _gelu(x: float) -> float:
    return x * (1 + erf(x / sqrt(2))) / 2


NEAR_SILU = "mish leaky_relu sigmoid quick_gelu gelu_accurate gelu_python bloom_gelu xielu gpt_oss"
ACTIVATIONS: dict[str, Callable[[float], float]] = {
    **dict.fromkeys(("silu", "swish", *NEAR_SILU.split()), _silu),
    **dict.fromkeys(("gelu", "gelu_new", "gelu_pytorch_tanh", "gelu_fast"), _gelu),
    "relu": lambda x: max(x, 0.0),
    "relu2": lambda x: max(x, 0.0) ** 2,
    "tanh": tanh,
}
