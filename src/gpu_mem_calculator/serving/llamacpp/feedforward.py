"""Feed-forwards as a graph: dense ones, and experts.

llama.cpp b10586 src/llama-graph.cpp build_ffn, build_moe_ffn.
"""

from __future__ import annotations

from ...model.blocks import Mlp, Moe
from .attention import projected
from .graph_inputs import GraphBuilder
from .graph_tensors import GraphTensor, alike, get_rows, mul_mat, mul_mat_id, new, reshape, view
from .versions import EARLY_WEIGHTS, FUSED_GATE, GROUPED

# Families whose router's weights are divided by their sum.
SUMMED = frozenset({"llama", "mixtral", "qwen3_moe", "deepseek_v3", "kimi_k2", "phimoe",
                    "glm4_moe", "qwen3_next", "qwen3_5_moe", "nemotron_h"})  # fmt: skip
SCALED = frozenset({"deepseek_v2", "deepseek_v3", "kimi_k2", "glm4_moe", "nemotron_h"})
GROUPS = {"deepseek_v3": (8, 4)}  # groups of experts, and how many of them a token may use


def dense(
    site: GraphBuilder, mlp: Mlp, x: GraphTensor, index: int, suffix: str = ""
) -> GraphTensor:
    """down(act(up x)), or down(act(gate x) up x)."""
    *gate, up = mlp.inputs
    made = projected(site, up, x, index, f"ffn_up{suffix}")
    if gate:
        gated = projected(site, gate[0], x, index, f"ffn_gate{suffix}")
        made = _gated(site, gated, made)
    elif mlp.gated:
        made = _halved(site, made)
    else:
        made = alike("unary", made)
        if mlp.activation == "relu2":
            made = alike("sqr", made)
    return projected(site, mlp.output, made, index, f"ffn_down{suffix}")


def _gated(site: GraphBuilder, gate: GraphTensor, up: GraphTensor) -> GraphTensor:
    """The gate's activation times the other half."""
    if site.how.build >= FUSED_GATE:
        return alike("glu", gate, up)
    return alike("mul", alike("unary", gate), up)


def _halved(site: GraphBuilder, both: GraphTensor) -> GraphTensor:
    """The same where both halves are one tensor."""
    half = both.ne[0] // 2
    if site.how.build >= FUSED_GATE:
        return new("glu", (half, both.ne[1]), (both,))
    parts = [view(both, (half, both.ne[1]), (both.nb[1],)) for _ in range(2)]
    first, second = (new("cont", part.ne, (part,)) for part in parts)
    return alike("mul", alike("unary", first), second)


def experts(site: GraphBuilder, moe: Moe, x: GraphTensor, index: int) -> GraphTensor:
    """A token's experts, their sum, and the expert that all tokens use."""
    chosen, weights = _routed(site, moe, x, index)
    if site.how.build >= EARLY_WEIGHTS:
        site.graph.expand(weights)
    made = _summed(site, moe, _experts(site, moe, x, index, chosen, weights))
    if moe.shared is None:
        return made
    if moe.shared_gate is None:
        return alike("add", made, dense(site, moe.shared, x, index, "_shexp"))
    gate = mul_mat(site.layer_weight(index, "ffn_gate_inp_shexp.weight", x.ne[0], 1), x)
    share = alike("unary", gate)
    if site.arch.family == "qwen2_moe":
        share = alike("div", share, gate)
    return alike("add", made, alike("mul", dense(site, moe.shared, x, index, "_shexp"), share))


def _routed(
    site: GraphBuilder, moe: Moe, x: GraphTensor, index: int
) -> tuple[GraphTensor, GraphTensor]:
    """The experts of each token, and what each counts."""
    family, n, k, t = site.arch.family, moe.num_experts, moe.top_k, x.ne[1]
    logits = mul_mat(site.layer_weight(index, "ffn_gate_inp.weight", x.ne[0], n), x)
    if len(moe.router) > 1:
        logits = alike("add", logits, site.layer_weight(index, "ffn_gate_inp.bias", n))
    late = moe.router_impl == "top_softmax"
    sigmoid = "sigmoid" in moe.router_impl or moe.all_tokens
    probs = logits if late else alike("unary" if sigmoid else "soft_max", logits)
    picked = probs
    if f"blk.{index}.exp_probs_b.bias" in site.kinds:
        picked = alike("add", probs, site.layer_weight(index, "exp_probs_b.bias", n))
    if moe.all_tokens:
        picked = logits
    if family in GROUPS and site.how.build >= GROUPED:
        picked = _masked(picked, n, t, *GROUPS[family])
    ordered = new("argsort", (n, t), (picked,), "I32")
    chosen = view(ordered, (k, t), (ordered.nb[1],))
    weights = get_rows(reshape(probs, 1, n, t), chosen)
    if late:
        weights = reshape(alike("soft_max", reshape(weights, k, t)), 1, k, t)
    if family in SUMMED:
        flat = reshape(weights, k, t)
        total = new("clamp", (1, t), (new("sum_rows", (1, t), (flat,)),))
        weights = reshape(alike("div", flat, total), 1, k, t)
    if family in SCALED:
        weights = alike("scale", weights)
    return chosen, weights


def _masked(picked: GraphTensor, n: int, t: int, groups: int, used: int) -> GraphTensor:
    """Only the best groups of experts."""
    each = n // groups
    grouped = reshape(picked, each, groups, t)
    best = new("argsort", grouped.ne, (grouped,), "I32")
    two = view(best, (2, groups, t), best.nb[1:])
    scores = get_rows(reshape(grouped, 1, each, groups, t), two)
    total = new("sum_rows", (1, groups, t), (reshape(scores, 2, groups, t),))
    ranks = new("argsort", (groups, t), (reshape(total, groups, t),), "I32")
    kept = view(ranks, (used, t), (ranks.nb[1],))
    rows = get_rows(grouped, kept)
    empty = alike("fill", grouped)
    filled = GraphTensor("set_rows", "F32", empty.ne, (rows, kept, empty), view=empty)
    return reshape(filled, n, t)


def _experts(
    site: GraphBuilder,
    moe: Moe,
    x: GraphTensor,
    index: int,
    chosen: GraphTensor,
    weights: GraphTensor,
) -> GraphTensor:
    h, t, n, f = x.ne[0], x.ne[1], moe.num_experts, moe.ffn
    biased = any("bias" in one.name for one in moe.experts)

    def product(name: str, ins: int, outs: int, of: GraphTensor) -> GraphTensor:
        weight = site.layer_weight(index, f"ffn_{name}_exps.weight", ins, outs, n)
        made = mul_mat_id(weight, of, chosen)
        if biased:
            bias = site.layer_weight(index, f"ffn_{name}_exps.bias", outs, n)
            made = alike("add_id", made, bias, chosen)
        return made

    x = reshape(x, h, 1, t)
    if moe.all_tokens:
        x = alike("mul", new("repeat", (h, moe.top_k, t), (x,)), weights)
    up = product("up", h, f, x)
    made = _gated(site, product("gate", h, f, x), up) if moe.gated else alike("unary", up)
    made = product("down", f, h, made)
    return made if moe.all_tokens else alike("mul", made, weights)


def _summed(site: GraphBuilder, moe: Moe, each: GraphTensor) -> GraphTensor:
    """The experts of a token, added one by one."""
    h, k, t = each.ne[:3]
    expand = site.graph.expand
    expand(each)
    parts = [view(each, (h, t), (each.nb[2],)) for _ in range(k)]
    for part in parts:
        expand(part)
    if k == 1:
        return new("cont", (h, t), (parts[0],))
    made = parts[0]
    for part in parts[1:]:
        made = expand(new("add", (h, t), (made, part)))
    return made
