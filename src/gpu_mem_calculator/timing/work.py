"""What one pass of a model has to compute, read and send.

Legend: n tokens of the pass, c tokens each of them sees, k of e experts a token.
"""

from __future__ import annotations

from msgspec import Struct

from ..model.arch import Arch, Layer
from ..model.blocks import Attention, LatentAttention, Moe

MULTIPLY_ADD = 2  # operations of a weight on a token


class Work(Struct, frozen=True, kw_only=True):
    """One pass on one rank: operations, bytes that are read, bytes that are sent and how often."""

    flops: float
    read_bytes: float
    sent_bytes: float
    messages: int


def matmul_elements(arch: Arch) -> int:
    """Weights that a token is multiplied by: of experts those it is sent to, no embedding table."""
    stack = sum(_layer_elements(layer) * count for layer, _, count in arch.runs)
    return stack + arch.vocab * arch.hidden


def _layer_elements(layer: Layer) -> int:
    moe = layer.mlp if isinstance(layer.mlp, Moe) else None
    whole = sum(int(w.numel) for w in layer.weights() if len(w.dims) > 1)
    if moe is None:
        return whole
    experts = sum(int(w.numel) for w in moe.experts if len(w.dims) > 1)
    return whole - experts + experts * moe.top_k // moe.num_experts


def attention_flops(arch: Arch, context: float) -> float:
    """Scores and their product with the values, for one token that sees so many."""
    total = 0.0
    for place, layer in enumerate(arch.layers):
        window = arch.windows[place] if arch.windows else None
        seen = context if window is None else min(context, window)
        mixer = layer.mixer
        if isinstance(mixer, Attention):
            wide = mixer.heads * (mixer.head_dim + (mixer.value_dim or mixer.head_dim))
        elif isinstance(mixer, LatentAttention):
            wide = mixer.heads * (2 * mixer.kv_rank + mixer.rope_dim)
        else:
            continue
        total += MULTIPLY_ADD * wide * seen
    return total


def touched(arch: Arch, tokens: int) -> float:
    """The share of the weights that a pass reads: with few tokens, few experts are chosen.

    Each token picks k of e at random: e (1 - (1 - k/e)^n) of them are read.
    """
    whole = read = 0.0
    for layer, _, count in arch.runs:
        elements = float(layer.num_parameters) * count
        moe = layer.mlp if isinstance(layer.mlp, Moe) else None
        whole += elements
        read += elements
        if moe is not None:
            experts = float(sum(int(w.numel) for w in moe.experts)) * count
            read -= experts * (1 - moe.top_k / moe.num_experts) ** tokens
    head = float(arch.vocab * arch.hidden)
    return (read + head) / (whole + head)


def reduced(arch: Arch, tokens: int, ranks: int, bits: int) -> tuple[float, int]:
    """Bytes a rank sends and messages it waits for: two sums over the ranks in each layer.

    A ring sends 2 (t - 1) / t of a tensor in 2 (t - 1) messages; NCCL's tree waits for fewer, and
    servers have one-shot kernels: one message there and back is counted.
    """
    if ranks == 1:
        return 0.0, 0
    sums = 2 * len(arch.layers) + 1
    return sums * 2 * (ranks - 1) / ranks * tokens * arch.hidden * bits / 8, sums * 2
