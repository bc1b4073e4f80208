"""One decoder layer, from its input to its output, and the walk over it."""

from __future__ import annotations

from ...autograd.tape import Tape, Value
from ...autograd.walk import BlockWalk, walk
from ...model.arch import Layer
from ...model.blocks import Attention, LatentAttention, Mlp, StateSpace
from .attention import attention, latent_attention
from .cache import LayerCache
from .experts import moe
from .feedforward import mlp
from .norms import norm
from .ops import add, maybe_dropout
from .setting import BlockSetting
from .state_space import state_space


def _mix(
    tape: Tape,
    setting: BlockSetting,
    x: Value,
    layer: Layer,
    masked: bool,
    cache: LayerCache | None,
) -> Value:
    block = layer.mixer
    if isinstance(block, Attention):
        out = attention(tape, setting, x, block, masked=masked, cache=cache)
    elif isinstance(block, LatentAttention):
        out = latent_attention(tape, setting, x, block, masked=masked, cache=cache)
    else:
        assert isinstance(block, StateSpace)
        out = state_space(tape, setting, x, block, cache)
    _named(tape, setting, x)
    if setting.quirks.attention_output_named:
        tape.returned.append(out)
    if setting.quirks.attention_input_named:
        tape.returned.append(x)
    return out


def _feed(tape: Tape, setting: BlockSetting, x: Value, layer: Layer) -> Value:
    block = layer.mlp
    if isinstance(block, Mlp):
        out = mlp(tape, setting, x, block)
    else:
        assert block is not None
        out = moe(tape, setting, x, block)
    if not setting.quirks.inline_mlp:
        _named(tape, setting, x)
    return out


def _named(tape: Tape, setting: BlockSetting, *values: Value) -> None:
    """The layer's code names what it gives to a block until that returns."""
    tape.hold(*values)


def _normed(tape: Tape, setting: BlockSetting, x: Value, layer: Layer, where: str) -> Value:
    found = layer.norm(where)
    if found is None:
        return x
    if layer.fp32_residual:  # Mamba2Block casts the stream for its norm (modeling_mamba2.py)
        x = tape.cast(x, setting.bits)
    return norm(tape, setting, x, found)


def run_layer(
    tape: Tape, setting: BlockSetting, x: Value, layer: Layer, *, masked: bool,
    cache: LayerCache | None = None,
) -> Value:  # fmt: skip
    """The residual stream through one layer."""
    if layer.parallel:
        pre = _normed(tape, setting, x, layer, "pre")
        two, late = layer.norm("pre_mlp") is not None, setting.quirks.second_norm_late
        mlp_in = _normed(tape, setting, x, layer, "pre_mlp") if two and not late else pre
        mixed = _mix(tape, setting, pre, layer, masked, cache)
        mixed = maybe_dropout(tape, setting, mixed, layer.dropout)
        if two and late:
            mlp_in = _normed(tape, setting, x, layer, "pre_mlp")
        fed = _feed(tape, setting, mlp_in, layer)
        fed = maybe_dropout(tape, setting, fed, layer.dropout)
        if setting.quirks.both_norms_named:
            tape.hold(pre)
        return add(tape, add(tape, mixed, fed, "branches"), x)
    if layer.mixer is not None:
        mixed = _mix(tape, setting, _normed(tape, setting, x, layer, "pre"), layer, masked, cache)
        mixed = _normed(tape, setting, mixed, layer, "post")
        x = add(tape, x, maybe_dropout(tape, setting, mixed, layer.dropout))
        x = _normed(tape, setting, x, layer, "after")
    if layer.mlp is not None:
        fed = _feed(tape, setting, _normed(tape, setting, x, layer, "pre_mlp"), layer)
        fed = _normed(tape, setting, fed, layer, "post_mlp")
        x = add(tape, x, maybe_dropout(tape, setting, fed, layer.dropout))
        x = _normed(tape, setting, x, layer, "after_mlp")
    return x


def layer_walk(
    setting: BlockSetting, layer: Layer, *, masked: bool = False, recompute_core: bool = False,
    grad: bool = True, checkpoint: str = "",
) -> BlockWalk:  # fmt: skip
    """What one layer keeps and its highest moments in both directions.

    `grad` is false where nothing in front of the layer takes a gradient; `checkpoint` says how
    the layer is checkpointed.
    """
    tape = Tape()
    bits = 32 if layer.fp32_residual else setting.bits
    x = tape.value("layer.input", setting.tokens * setting.hidden, bits, grad=grad)
    y = run_layer(tape, setting, x, layer, masked=masked)
    tape.hold(x, *tape.returned)  # the model's loop and the layer's own code name them
    if not setting.frozen:
        tape.add_other_weights(layer.num_parameters, setting.weight_bits)
    return walk(tape, x, y, recompute_core=recompute_core, checkpoint=checkpoint)
