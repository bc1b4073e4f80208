"""Gated DeltaNet layers in the compute graph (Qwen3-Next, Qwen3.5).

llama.cpp b10586 src/models/qwen35.cpp build_layer_attn_linear, delta-net-base.cpp with its one op.
Legend: h value heads, g key heads, d size of a head, t tokens of each of q sequences.
"""

from __future__ import annotations

from ...model.blocks import Recurrence
from .graph_inputs import GraphBuilder
from .graph_tensors import GraphTensor, mul_mat, new_op, op_like, reshape, view, write_into
from .state_space import convolve, state, state_rows


def delta_net(builder: GraphBuilder, mixer: Recurrence, x: GraphTensor, index: int) -> GraphTensor:
    """The mixer's output for x, which is the norm's output."""
    q, t = builder.setting.sequences, builder.setting.tokens // builder.setting.sequences
    hidden, h, d, channels = x.ne[0], mixer.heads, mixer.value_dim, mixer.channels
    mixed = reshape(
        mul_mat(builder.layer_weight(index, "attn_qkv.weight", hidden, channels), x), channels, t, q
    )
    gate = mul_mat(builder.layer_weight(index, _gate_name(builder, index), hidden, h * d), x)
    beta, decay = _rates(builder, mixer, x, index)
    conv = convolve(builder, index, mixed, mixer.conv, mixer.conv_elements)
    states = reshape(state_rows(builder, index, "s", mixer.state_elements), d, d, h, q)
    conv = op_like("unary", conv)
    queries, keys, values = _parts(builder, mixer, conv)
    result = new_op(
        "gated_delta_net", (d * h, t * q + d * q), (queries, keys, values, decay, beta, states)
    )
    shown, after = view(result, (d, h, t, q)), view(result, (d, d, h, q))
    target = view(state(builder, index, "s", mixer.state_elements), (mixer.state_elements, q))
    builder.graph.expand(write_into(target, after, target, op="cpy"))
    out = builder.pin(op_like("rms_norm", shown), index)
    out = op_like("mul", out, builder.layer_weight(index, "ssm_norm.weight", d))
    out = op_like("mul", out, op_like("unary", reshape(gate, d, h, t, q)))
    weight = builder.layer_weight(index, "ssm_out_proj.weight", h * d, hidden)
    return reshape(mul_mat(weight, reshape(out, h * d, t, q)), hidden, t * q)


def _gate_name(builder: GraphBuilder, index: int) -> str:
    """The gate's weight: a separate one, or the part of a fused projection."""
    return next(
        (
            name
            for name in ("attn_gate.weight", "ssm_in_proj_z.weight")
            if f"blk.{index}.{name}" in builder.kinds
        ),
        "attn_gate.weight",
    )


def _rates(
    builder: GraphBuilder, mixer: Recurrence, x: GraphTensor, index: int
) -> tuple[GraphTensor, GraphTensor]:
    """beta, how much is written to the state, and the decay, how much is forgotten."""
    q, t = builder.setting.sequences, builder.setting.tokens // builder.setting.sequences
    hidden, h, g = x.ne[0], mixer.heads, mixer.key_heads
    if builder.arch.family == "qwen3_next":
        fused = mul_mat(builder.layer_weight(index, "ssm_in_proj_ba.weight", hidden, 2 * h), x)
        fused = reshape(fused, 2 * h // g, g, t, q)
        first, second = (view(fused, (h // g, g, t, q), fused.nb[1:]) for _ in range(2))
        beta = reshape(op_like("unary", new_op("cont", first.ne, (first,))), 1, h, t, q)
        alpha = new_op("cont", (h, t, q), (second,))
    else:
        weight = builder.layer_weight(index, "ssm_in_proj_b.weight", hidden, h)
        beta = op_like("unary", reshape(mul_mat(weight, x), 1, h, t, q))
        weight = builder.layer_weight(index, "ssm_in_proj_a.weight", hidden, h)
        alpha = reshape(mul_mat(weight, x), h, t, q)
    alpha = op_like("add", alpha, builder.layer_weight(index, "ssm_dt.bias", h))
    alpha = op_like("mul", op_like("unary", alpha), builder.layer_weight(index, "ssm_a", h))
    return beta, reshape(alpha, 1, h, t, q)


def _parts(
    builder: GraphBuilder, mixer: Recurrence, conv: GraphTensor
) -> tuple[GraphTensor, GraphTensor, GraphTensor]:
    """Queries and keys after their L2 norm, and values.

    Qwen3-Next repeats queries and keys for every value head.
    """
    t, q = conv.ne[1], conv.ne[2]
    h, g, dk, d = mixer.heads, mixer.key_heads, mixer.key_dim, mixer.value_dim
    pair = [
        op_like("l2_norm", view(conv, (dk, g, t, q), (dk * 4, *conv.nb[1:3]))) for _ in range(2)
    ]
    values = view(conv, (d, h, t, q), (d * 4, *conv.nb[1:3]))
    if builder.arch.family == "qwen3_next" and g != h:
        repeated = [
            new_op("repeat", (dk, h // g, g, t * q), (reshape(one, dk, 1, g, t * q),))
            for one in pair
        ]
        pair = [reshape(one, dk, h, t, q) for one in repeated]
    return pair[0], pair[1], values
