"""The FLOPs of a model as the field counts them for MFU, without recompute.

6 N + 12 L H Q T for each token (Chowdhery et al., PaLM, appendix B; nanoGPT's `estimate_mfu`):

- N: weights that a token is multiplied with: every matrix of the layers and the output layer, of
  the experts only those that a token is routed to. The input embedding is a lookup, and norms and
  biases are no matrices, so they do not count.
- 12 L H Q T: the scores of attention and their product with the values, forward and backward, for L
  layers with H heads of Q elements over T tokens. All T tokens count, although a causal mask halves
  the pairs. A sliding window limits T.

Frozen weights have no gradient, so adapters make it 4 N; the adapters themselves do not count.
A recurrence or a state-space mixer counts by its weights alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

from ...ledger.num import Num, smaller
from ...models.arch.arch import Arch, Layer
from ...models.arch.blocks import Attention, LatentAttention, Moe, Weight
from .step_seconds import Seconds

Flops: TypeAlias = Any  # a float for one run, an array of floats for several at once

TRAINED, FROZEN = 6, 4  # FLOPs of a token for each weight: forward 2, its gradients 2 each
MIXED = 6  # of a token for each pair: scores and values are two products, 2 forward, 4 backward


def model_flops(arch: Arch, tokens: Num, seq: Num, *, frozen: bool = False) -> Flops:
    """FLOPs of one step over `tokens` tokens in sequences of `seq`.

    A float: those of large runs are more than an array of integers can hold.
    """
    per_weight = FROZEN if frozen else TRAINED
    of_token: Flops = per_weight * multiplied_weights(arch) + mixing_flops(arch, seq)
    return 1.0 * of_token * tokens


def mfu(flops: Flops, seconds: Seconds, gpus: Num, peak_flops: float) -> Any:
    """Model FLOPs a second over the dense peak of all cards."""
    return flops / (seconds * gpus * peak_flops)


def multiplied_weights(arch: Arch) -> int:
    """N: elements of the matrices that one token is multiplied with."""
    layers = sum(count * layer_weights(layer) for layer, _, count in arch.runs)
    head = arch.hidden * arch.vocab if arch.head is None else arch.head.numel
    return layers + head


def layer_weights(layer: Layer) -> int:
    """The same of one layer."""
    if not isinstance(layer.mlp, Moe):
        return _matrices(layer.weights())
    moe = layer.mlp
    experts = _matrices(moe.experts)
    used = experts if moe.all_tokens else experts * moe.top_k // moe.num_experts
    return _matrices(layer.weights()) - experts + used


def mixing_flops(arch: Arch, seq: Num) -> Num:
    """12 H Q T of every attention layer, for one token."""
    flops: Num = 0
    for layer, window, _, count in arch.window_runs:
        seen = seq if window is None else smaller(seq, window)
        mixers = (one for one in layer.mixers if isinstance(one, Attention | LatentAttention))
        width = sum(one.heads * head_widths(one) for one in mixers)
        flops = flops + count * MIXED * seen * width
    return flops


def head_widths(mixer: Attention | LatentAttention) -> int:
    """Elements of a head's key and value."""
    if isinstance(mixer, LatentAttention):
        return mixer.nope_dim + mixer.rope_dim + mixer.value_dim
    return mixer.head_dim + (mixer.value_dim or mixer.head_dim)


def _matrices(weights: Iterable[Weight]) -> int:
    """Elements of the parameters with two dimensions or more."""
    return sum(weight.numel for weight in weights if len(weight.dims) > 1)
