"""Gated DeltaNet layers in the compute graph (Qwen3-Next, Qwen3.5).

llama.cpp b10586 src/models/qwen35.cpp build_layer_attn_linear, delta-net-base.cpp with its one op.
Legend: h value heads, g key heads, d size of a head, t tokens of each of q sequences.
"""

from __future__ import annotations

from ...models.arch.blocks import Recurrence
from .graph_inputs import GraphBuilder
from .graph_tensors import GraphTensor, contiguous, new_op, op_like, reshape, view, write_into
from .state_space import convolve, state, state_rows


def delta_net(builder: GraphBuilder, mixer: Recurrence, x: GraphTensor) -> GraphTensor:
    """The mixer's output for x, which is the norm's output."""
    q, t = builder.setting.sequences, builder.setting.tokens // builder.setting.sequences
    hidden, h, d, channels = x.ne[0], mixer.heads, mixer.value_dim, mixer.channels
    mixed = reshape(builder.product("attn_qkv.weight", channels, x), channels, t, q)
    separate = builder.has("attn_gate.weight") or not builder.has("ssm_in_proj_z.weight")
    gate = builder.product(f"{'attn_gate' if separate else 'ssm_in_proj_z'}.weight", h * d, x)
    beta, decay = _rates(builder, mixer, x)
    conv = convolve(builder, mixed, mixer.conv, mixer.conv_elements)
    states = reshape(state_rows(builder, "s", mixer.state_elements), d, d, h, q)
    conv = op_like("unary", conv)
    queries, keys, values = _parts(builder, mixer, conv)
    sources = (queries, keys, values, decay, beta, states)
    result = new_op("gated_delta_net", (d * h, t * q + d * q), sources)
    shown, after = view(result, (d, h, t, q)), view(result, (d, d, h, q))
    target = view(state(builder, "s", mixer.state_elements), (mixer.state_elements, q))
    builder.graph.expand(write_into(target, after, target, op="cpy"))
    out = builder.pin(op_like("rms_norm", shown))
    out = op_like("mul", out, builder.layer_weight("ssm_norm.weight", d))
    out = op_like("mul", out, op_like("unary", reshape(gate, d, h, t, q)))
    out = builder.product("ssm_out_proj.weight", hidden, reshape(out, h * d, t, q))
    return reshape(out, hidden, t * q)


def _rates(
    builder: GraphBuilder, mixer: Recurrence, x: GraphTensor
) -> tuple[GraphTensor, GraphTensor]:
    """beta, how much is written to the state, and the decay, how much is forgotten."""
    q, t = builder.setting.sequences, builder.setting.tokens // builder.setting.sequences
    h, g = mixer.heads, mixer.key_heads
    if builder.arch.family == "qwen3_next":
        fused = reshape(builder.product("ssm_in_proj_ba.weight", 2 * h, x), 2 * h // g, g, t, q)
        first, second = (view(fused, (h // g, g, t, q), fused.nb[1:]) for _ in range(2))
        beta = reshape(op_like("unary", contiguous(first)), 1, h, t, q)
        alpha = new_op("cont", (h, t, q), (second,))
    else:
        beta = op_like("unary", reshape(builder.product("ssm_in_proj_b.weight", h, x), 1, h, t, q))
        alpha = reshape(builder.product("ssm_in_proj_a.weight", h, x), h, t, q)
    alpha = op_like("add", alpha, builder.layer_weight("ssm_dt.bias", h))
    alpha = op_like("mul", op_like("unary", alpha), builder.layer_weight("ssm_a", h))
    return beta, reshape(alpha, 1, h, t, q)


def _parts(
    builder: GraphBuilder, mixer: Recurrence, conv: GraphTensor
) -> tuple[GraphTensor, GraphTensor, GraphTensor]:
    """Queries and keys after their L2 norm, and values.

    Qwen3-Next repeats queries and keys for every value head.
    """
    t, q = conv.ne[1], conv.ne[2]
    h, g, dk, d = mixer.heads, mixer.key_heads, mixer.key_dim, mixer.value_dim
    outer = conv.nb[1:3]
    pair = [op_like("l2_norm", view(conv, (dk, g, t, q), (dk * 4, *outer))) for _ in range(2)]
    values = view(conv, (d, h, t, q), (d * 4, *outer))
    if builder.arch.family == "qwen3_next" and g != h:
        sizes = (dk, h // g, g, t * q)
        repeated = [new_op("repeat", sizes, (reshape(one, dk, 1, g, t * q),)) for one in pair]
        pair = [reshape(one, dk, h, t, q) for one in repeated]
    return pair[0], pair[1], values
