"""Gated DeltaNet layers as a graph (Qwen3-Next, Qwen3.5).

llama.cpp b10586 src/models/qwen35.cpp build_layer_attn_linear, delta-net-base.cpp with its one op.
Legend: h value heads, g key heads, d size of a head, t tokens of each of q sequences.
"""

from __future__ import annotations

from ...model.blocks import Recurrence
from .graph_inputs import GraphBuilder
from .graph_tensors import GraphTensor, alike, mul_mat, new, reshape, view, written
from .state_space import convolved, state, state_rows


def delta(site: GraphBuilder, mixer: Recurrence, x: GraphTensor, index: int) -> GraphTensor:
    """One mixer on its normed input."""
    q, t = site.how.sequences, site.how.tokens // site.how.sequences
    hidden, h, d, wide = x.ne[0], mixer.heads, mixer.value_dim, mixer.channels
    mixed = reshape(mul_mat(site.layer_weight(index, "attn_qkv.weight", hidden, wide), x),
                    wide, t, q)  # fmt: skip
    gate = mul_mat(site.layer_weight(index, _gate_name(site, index), hidden, h * d), x)
    beta, decay = _rates(site, mixer, x, index)
    conv = convolved(site, index, mixed, mixer.conv, mixer.conv_elements)
    kept = reshape(state_rows(site, index, "s", mixer.state_elements), d, d, h, q)
    conv = alike("unary", conv)
    queries, keys, values = _parts(site, mixer, conv)
    made = new("gated_delta_net", (d * h, t * q + d * q),
               (queries, keys, values, decay, beta, kept))  # fmt: skip
    shown, after = view(made, (d, h, t, q)), view(made, (d, d, h, q))
    target = view(state(site, index, "s", mixer.state_elements), (mixer.state_elements, q))
    site.graph.expand(written(target, after, target, op="cpy"))
    normed = site.pin(alike("rms_norm", shown), index)
    normed = alike("mul", normed, site.layer_weight(index, "ssm_norm.weight", d))
    normed = alike("mul", normed, alike("unary", reshape(gate, d, h, t, q)))
    weight = site.layer_weight(index, "ssm_out_proj.weight", h * d, hidden)
    return reshape(mul_mat(weight, reshape(normed, h * d, t, q)), hidden, t * q)


def _gate_name(site: GraphBuilder, index: int) -> str:
    """As the file has it: apart, or taken out of one projection."""
    return next((name for name in ("attn_gate.weight", "ssm_in_proj_z.weight")
                 if f"blk.{index}.{name}" in site.kinds), "attn_gate.weight")  # fmt: skip


def _rates(
    site: GraphBuilder, mixer: Recurrence, x: GraphTensor, index: int
) -> tuple[GraphTensor, GraphTensor]:
    """How much is written, and how much is forgotten."""
    q, t = site.how.sequences, site.how.tokens // site.how.sequences
    hidden, h, g = x.ne[0], mixer.heads, mixer.key_heads
    if site.arch.family == "qwen3_next":
        both = mul_mat(site.layer_weight(index, "ssm_in_proj_ba.weight", hidden, 2 * h), x)
        both = reshape(both, 2 * h // g, g, t, q)
        first, second = (view(both, (h // g, g, t, q), both.nb[1:]) for _ in range(2))
        beta = reshape(alike("unary", new("cont", first.ne, (first,))), 1, h, t, q)
        alpha = new("cont", (h, t, q), (second,))
    else:
        weight = site.layer_weight(index, "ssm_in_proj_b.weight", hidden, h)
        beta = alike("unary", reshape(mul_mat(weight, x), 1, h, t, q))
        weight = site.layer_weight(index, "ssm_in_proj_a.weight", hidden, h)
        alpha = reshape(mul_mat(weight, x), h, t, q)
    alpha = alike("add", alpha, site.layer_weight(index, "ssm_dt.bias", h))
    alpha = alike("mul", alike("unary", alpha), site.layer_weight(index, "ssm_a", h))
    return beta, reshape(alpha, 1, h, t, q)


def _parts(
    site: GraphBuilder, mixer: Recurrence, conv: GraphTensor
) -> tuple[GraphTensor, GraphTensor, GraphTensor]:
    """Queries and keys, normed; values. Qwen3-Next repeats the former for every value head."""
    t, q = conv.ne[1], conv.ne[2]
    h, g, dk, d = mixer.heads, mixer.key_heads, mixer.key_dim, mixer.value_dim
    pair = [alike("l2_norm", view(conv, (dk, g, t, q), (dk * 4, *conv.nb[1:3]))) for _ in range(2)]
    values = view(conv, (d, h, t, q), (d * 4, *conv.nb[1:3]))
    if site.arch.family == "qwen3_next" and g != h:
        repeated = [new("repeat", (dk, h // g, g, t * q), (reshape(one, dk, 1, g, t * q),))
                    for one in pair]  # fmt: skip
        pair = [reshape(one, dk, h, t, q) for one in repeated]
    return pair[0], pair[1], values
