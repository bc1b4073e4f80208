"""One transformer layer of Megatron-Core, from its input to its output."""

from __future__ import annotations

from ...autograd.tape import Tape, Value
from ...autograd.walk import REENTRANT, BlockWalk, walk
from ...model.arch import Layer
from ...model.blocks import Attention, LatentAttention, Mlp, Moe
from .attention import attention, latent_attention
from .feedforward import mlp, moe
from .norms import norm
from .ops import MegatronSetting, residual


def _normed(tape: Tape, how: MegatronSetting, x: Value, layer: Layer, where: str) -> Value:
    found = layer.norm(where)
    return x if found is None else norm(tape, how, x, found)


def _mixed(tape: Tape, how: MegatronSetting, inner: Value, layer: Layer) -> Value:
    if isinstance(layer.mixer, LatentAttention):
        return latent_attention(tape, how, inner, layer.mixer)
    assert isinstance(layer.mixer, Attention)
    return attention(tape, how, inner, layer.mixer)


def _fed(tape: Tape, how: MegatronSetting, inner: Value, layer: Layer) -> Value:
    if isinstance(layer.mlp, Moe):
        return moe(tape, how, inner, layer.mlp)
    assert isinstance(layer.mlp, Mlp)
    return mlp(tape, how, inner, layer.mlp)


def run_layer(tape: Tape, how: MegatronSetting, x: Value, layer: Layer) -> Value:
    """Attention and MLP, each with its norm and a fused bias-dropout-add (transformer_layer.py).

    Each half names its norm's output until it is done.
    """
    inner = _normed(tape, how, x, layer, "pre")
    mixed = _normed(tape, how, _mixed(tape, how, inner, layer), layer, "post")
    inside = getattr(layer.mixer, "residual_dropout", 0.0)
    x = residual(tape, x, mixed, layer.dropout or inside)
    tape.hold(inner)
    inner = _normed(tape, how, x, layer, "pre_mlp")
    fed = _normed(tape, how, _fed(tape, how, inner, layer), layer, "post_mlp")
    x = residual(tape, x, fed, layer.dropout or getattr(layer.mlp, "dropout", 0.0))
    tape.hold(inner)
    return x


def layer_walk(
    how: MegatronSetting, layer: Layer, *, checkpointed: bool = False, given: bool = False
) -> BlockWalk:
    """What one layer keeps and its highest moments in both directions.

    Weight gradients go into the main-gradient buffer as they are made, so none stays. A
    checkpoint holds the layer's input and the gradient it is given until it is done
    (tensor_parallel/random.py CheckpointFunction); so does the schedule with a gradient that
    another stage has sent (`given`).
    """
    tape = Tape()
    tape.inputs_first = True  # tensor_parallel/layers.py:626, 725
    tape.core_held = how.selective  # tensor_parallel/random.py CheckpointFunction.backward
    x = tape.value("layer.input", how.local_tokens * how.hidden, how.bits)
    y = run_layer(tape, how, x, layer)
    whole = REENTRANT if checkpointed else ""
    return walk(tape, x, y, recompute_core=how.selective, checkpoint=whole,
                output_grad_held=checkpointed or given)  # fmt: skip
