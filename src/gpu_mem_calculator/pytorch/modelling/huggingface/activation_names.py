"""The names of activation functions that are modelled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....ledger.quoting import quoted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ....models.arch.arch import Arch

# What a fused function saves for backward: its input (True), or its output (False).
SAVES_INPUT = {
    **dict.fromkeys(("silu", "swish", "gelu", "gelu_pytorch_tanh", "leaky_relu", "mish"), True),
    **dict.fromkeys(("relu", "tanh", "sigmoid"), False),
}
# Those of several kernels each, which activation.py records.
COMPOSED_NAMES = (
    *("gelu_new", "gelu_accurate", "gelu_fast", "gelu_python", "quick_gelu", "relu2"),
    *("bloom_gelu", "xielu"),
)
GPT_OSS = "gpt_oss"  # clamps gate and up


def activation_problems(arch: Arch) -> Iterator[str]:
    """A sentence where a model has an activation whose memory is not known."""
    known = {*COMPOSED_NAMES, *SAVES_INPUT, GPT_OSS}
    for name in {layer.mlp.activation for layer, _, _ in arch.runs if layer.mlp} - known:
        choices = ", ".join(sorted(known - {GPT_OSS, "bloom_gelu"}))
        yield f"model.config: the activation {quoted(name)} is not modelled; it is one of {choices}"
