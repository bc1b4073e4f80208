"""Feed-forwards in the compute graph: dense ones, and experts.

llama.cpp b10586 src/llama-graph.cpp build_ffn, build_moe_ffn.
"""

from __future__ import annotations

from ...ledger.words import words
from ...models.arch.blocks import Mlp, Moe
from . import graph_tensors as ggml
from .attention import project
from .graph_inputs import GraphBuilder
from .graph_tensors import GraphTensor, contiguous, new_op, op_like, reshape, view
from .versions import EARLY_WEIGHTS, FUSED_GATE, GROUPED

# Families that divide the weights of a token's experts by their sum.
SUMMED = words("""
    llama mixtral qwen3_moe deepseek_v3 kimi_k2 phimoe glm4_moe qwen3_next qwen3_5_moe nemotron_h
""")
SCALED = frozenset({"deepseek_v2", "deepseek_v3", "kimi_k2", "glm4_moe", "nemotron_h"})
GROUPS = {"deepseek_v3": (8, 4)}  # groups of experts, and how many a token may use


def dense(builder: GraphBuilder, mlp: Mlp, x: GraphTensor, suffix: str = "") -> GraphTensor:
    """down(act(up x)), or down(act(gate x) up x)."""
    *gate, up = mlp.inputs
    out = project(builder, up, x, f"ffn_up{suffix}")
    if gate:
        gated = project(builder, gate[0], x, f"ffn_gate{suffix}")
        out = _gated(builder, gated, out)
    elif mlp.gated:
        out = _split_gate(builder, out)
    else:
        out = op_like("unary", out)
        if mlp.activation == "relu2":
            out = op_like("sqr", out)
    return project(builder, mlp.output, out, f"ffn_down{suffix}")


def _gated(builder: GraphBuilder, gate: GraphTensor, up: GraphTensor) -> GraphTensor:
    """The activation of the gate, times up."""
    if builder.setting.build >= FUSED_GATE:
        return op_like("glu", gate, up)
    return op_like("mul", op_like("unary", gate), up)


def _split_gate(builder: GraphBuilder, fused: GraphTensor) -> GraphTensor:
    """The same where gate and up are halves of one tensor."""
    half = fused.ne[0] // 2
    if builder.setting.build >= FUSED_GATE:
        return new_op("glu", (half, fused.ne[1]), (fused,))
    parts = [view(fused, (half, fused.ne[1]), (fused.nb[1],)) for _ in range(2)]
    first, second = (contiguous(part) for part in parts)
    return op_like("mul", op_like("unary", first), second)


def experts(builder: GraphBuilder, moe: Moe, x: GraphTensor) -> GraphTensor:
    """The sum of each token's experts, plus the shared expert."""
    ids, weights = _route(builder, moe, x)
    if builder.setting.build >= EARLY_WEIGHTS:
        builder.graph.expand(weights)
    out = _sum_experts(builder, _experts(builder, moe, x, ids, weights))
    if moe.shared is None:
        return out
    if moe.shared_gate is None:
        return op_like("add", out, dense(builder, moe.shared, x, "_shexp"))
    gate = builder.product("ffn_gate_inp_shexp.weight", 1, x)
    share = op_like("unary", gate)
    if builder.arch.family == "qwen2_moe":
        share = op_like("div", share, gate)
    return op_like("add", out, op_like("mul", dense(builder, moe.shared, x, "_shexp"), share))


def _route(builder: GraphBuilder, moe: Moe, x: GraphTensor) -> tuple[GraphTensor, GraphTensor]:
    """The experts of each token, and their weights."""
    family, n, k, t = builder.arch.family, moe.num_experts, moe.top_k, x.ne[1]
    logits = builder.product("ffn_gate_inp.weight", n, x)
    if len(moe.router) > 1:
        logits = op_like("add", logits, builder.layer_weight("ffn_gate_inp.bias", n))
    late = moe.router_impl == "top_softmax"
    sigmoid = "sigmoid" in moe.router_impl or moe.all_tokens
    probs = logits if late else op_like("unary" if sigmoid else "soft_max", logits)
    scores = probs
    if builder.has("exp_probs_b.bias"):
        scores = op_like("add", probs, builder.layer_weight("exp_probs_b.bias", n))
    if moe.all_tokens:
        scores = logits
    if family in GROUPS and builder.setting.build >= GROUPED:
        scores = _mask_groups(scores, n, t, *GROUPS[family])
    ordered = new_op("argsort", (n, t), (scores,), "I32")
    ids = view(ordered, (k, t), (ordered.nb[1],))
    weights = ggml.get_rows(reshape(probs, 1, n, t), ids)
    if late:
        weights = reshape(op_like("soft_max", reshape(weights, k, t)), 1, k, t)
    if family in SUMMED:
        flat = reshape(weights, k, t)
        total = new_op("clamp", (1, t), (new_op("sum_rows", (1, t), (flat,)),))
        weights = reshape(op_like("div", flat, total), 1, k, t)
    if family in SCALED:
        weights = op_like("scale", weights)
    return ids, weights


def _mask_groups(scores: GraphTensor, n: int, t: int, groups: int, used: int) -> GraphTensor:
    """Router scores in which all but the best groups of experts are masked."""
    each = n // groups
    grouped = reshape(scores, each, groups, t)
    best = new_op("argsort", grouped.ne, (grouped,), "I32")
    two = view(best, (2, groups, t), best.nb[1:])
    top_scores = ggml.get_rows(reshape(grouped, 1, each, groups, t), two)
    total = new_op("sum_rows", (1, groups, t), (reshape(top_scores, 2, groups, t),))
    ranks = new_op("argsort", (groups, t), (reshape(total, groups, t),), "I32")
    best_groups = view(ranks, (used, t), (ranks.nb[1],))
    rows = ggml.get_rows(grouped, best_groups)
    empty = op_like("fill", grouped)
    filled = GraphTensor("set_rows", "F32", empty.ne, (rows, best_groups, empty), view=empty)
    return reshape(filled, n, t)


def _experts(
    builder: GraphBuilder, moe: Moe, x: GraphTensor, ids: GraphTensor, weights: GraphTensor
) -> GraphTensor:
    h, t, n, f = x.ne[0], x.ne[1], moe.num_experts, moe.ffn
    biased = any("bias" in one.name for one in moe.experts)

    def product(name: str, ins: int, outs: int, of: GraphTensor) -> GraphTensor:
        weight = builder.layer_weight(f"ffn_{name}_exps.weight", ins, outs, n)
        out = ggml.mul_mat_id(weight, of, ids)
        if biased:
            bias = builder.layer_weight(f"ffn_{name}_exps.bias", outs, n)
            out = op_like("add_id", out, bias, ids)
        return out

    x = reshape(x, h, 1, t)
    if moe.all_tokens:
        x = op_like("mul", new_op("repeat", (h, moe.top_k, t), (x,)), weights)
    up = product("up", h, f, x)
    out = _gated(builder, product("gate", h, f, x), up) if moe.gated else op_like("unary", up)
    out = product("down", f, h, out)
    return out if moe.all_tokens else op_like("mul", out, weights)


def _sum_experts(builder: GraphBuilder, each: GraphTensor) -> GraphTensor:
    """The outputs of a token's experts, added one at a time."""
    h, k, t = each.ne[:3]
    expand = builder.graph.expand
    expand(each)
    parts = [view(each, (h, t), (each.nb[2],)) for _ in range(k)]
    for part in parts:
        expand(part)
    if k == 1:
        return new_op("cont", (h, t), (parts[0],))
    out = parts[0]
    for part in parts[1:]:
        out = expand(new_op("add", (h, t), (out, part)))
    return out
