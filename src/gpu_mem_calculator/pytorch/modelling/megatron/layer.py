"""One transformer layer of Megatron-Core, from its input to its output."""

from __future__ import annotations

from ....models.arch.arch import Layer
from ....models.arch.blocks import Attention, LatentAttention, Mlp, Moe
from ...autograd.recompute import discard
from ...autograd.tape import Tape, Value
from ...autograd.walk import BlockWalk, walk
from .attention import attention, latent_attention
from .feedforward import mlp, moe
from .norms import norm
from .ops import MegatronSetting, residual


def _run_norm(tape: Tape, setting: MegatronSetting, x: Value, layer: Layer, where: str) -> Value:
    block = layer.norm(where)
    return x if block is None else norm(tape, setting, x, block)


def _run_mixer(tape: Tape, setting: MegatronSetting, inner: Value, layer: Layer) -> Value:
    if isinstance(layer.mixer, LatentAttention):
        return latent_attention(tape, setting, inner, layer.mixer)
    assert isinstance(layer.mixer, Attention)
    return attention(tape, setting, inner, layer.mixer)


def _run_mlp(tape: Tape, setting: MegatronSetting, inner: Value, layer: Layer) -> Value:
    begin = len(tape.ops)
    if isinstance(layer.mlp, Moe):
        out, name = moe(tape, setting, inner, layer.mlp), "moe"
    else:
        assert isinstance(layer.mlp, Mlp)
        out, name = mlp(tape, setting, inner, layer.mlp), "mlp"
    if name in setting.recomputed:
        tape.regions.append(tape.ops[begin:])
        tape.leaves += [inner] if name == "moe" else []  # the dispatcher refers to its graph
    return out


def run_layer(tape: Tape, setting: MegatronSetting, x: Value, layer: Layer) -> Value:
    """Record attention and MLP, each with its norm and a fused bias-dropout-add
    (transformer_layer.py).

    Each half names its norm's output until it is done.
    """
    begin = len(tape.ops)
    inner = _run_norm(tape, setting, x, layer, "pre")
    norm_ops = tape.ops[begin:]
    mixed = _run_mixer(tape, setting, inner, layer)
    if recomputes_norm(setting, layer, "pre"):
        discard(tape, norm_ops, inner)
    mixed = _run_norm(tape, setting, mixed, layer, "post")
    inside = 0.0 if layer.mixer is None else layer.mixer.residual_dropout
    x = residual(tape, x, mixed, layer.dropout or inside)
    tape.hold(inner)
    begin = len(tape.ops)
    inner = _run_norm(tape, setting, x, layer, "pre_mlp")
    norm_ops = tape.ops[begin:]
    inside = layer.mlp.dropout if isinstance(layer.mlp, Mlp) else 0.0
    mlp_out = _run_mlp(tape, setting, inner, layer)
    if recomputes_norm(setting, layer, "pre_mlp"):
        discard(tape, norm_ops, inner)
    mlp_out = _run_norm(tape, setting, mlp_out, layer, "post_mlp")
    x = residual(tape, x, mlp_out, layer.dropout or inside)
    tape.hold(inner)
    return x


def recomputes_norm(setting: MegatronSetting, layer: Layer, where: str) -> bool:
    """Whether `layernorm` of recompute_modules recomputes the norm at this place: one that is a
    module of its own, which Transformer Engine's are only before experts (gpt_layer_specs.py).
    """
    apart = not setting.transformer_engine or (where == "pre_mlp" and isinstance(layer.mlp, Moe))
    return "layernorm" in setting.recomputed and apart and layer.norm(where) is not None


def layer_walk(
    setting: MegatronSetting, layer: Layer, *, checkpointed: int = 0, given: bool = False
) -> BlockWalk:
    """What one layer keeps for backward, and its peaks in both directions.

    Weight gradients are added to the main-gradient buffer at once, so none stays. A checkpoint
    holds the layer's input and its output's gradient until it is done (tensor_parallel/random.py
    CheckpointFunction); so does the schedule with a gradient that another stage has sent (`given`).
    `checkpointed`: the number of such layers under one checkpoint; 0: there is none.
    """
    tape = Tape()
    tape.inputs_first = True  # tensor_parallel/layers.py:626, 725
    tape.checkpoint_holds = True  # tensor_parallel/random.py CheckpointFunction.backward
    x = tape.value("layer.input", setting.local_tokens * setting.hidden, setting.bits)
    y = x
    for _ in range(checkpointed or 1):
        y = run_layer(tape, setting, y, layer)
    return walk(
        tape,
        x,
        y,
        recompute_core=setting.selective,
        checkpoint="reentrant" if checkpointed else "",
        output_grad_held=bool(checkpointed) or given,
    )
