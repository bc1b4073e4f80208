"""Attention in the compute graph: projections, norms, rotary, the cache, the scores.

llama.cpp b10586 src/llama-graph.cpp build_qkv, build_attn, build_attn_mha; src/models/*.cpp.
Legend: a heads, g key-value heads, d head size, t tokens, c cells, s streams.
"""

from __future__ import annotations

from ...ledger.words import words
from ...models.arch.blocks import Attention, Linear, Norm
from .attention_scores import Heads, attend, store_rows, value_view
from .graph_inputs import GraphBuilder, slides
from .graph_tensors import GraphTensor, mul_mat, new_op, op_like, quantized, reshape, view
from .versions import ALL_VIEWS, ROTATED, SPLIT_VIEWS, VALUES_FIRST

SCALED = frozenset({"phi", "phi3", "phimoe", "gemma", "gemma2", "gemma3", "gemma3_text"})  # queries
# Families with positions along four axes, three of them an image's.
AXES = words("""
    qwen3_5 qwen3_5_text qwen3_5_moe qwen3_5_moe_text qwen2_vl qwen2_5_vl qwen3_vl qwen3_vl_moe
""")
TEMPERED = frozenset({"llama4", "llama4_text"})


def apply_norm(builder: GraphBuilder, x: GraphTensor, norm: Norm, name: str) -> GraphTensor:
    """build_norm: normalize x, multiply by the gain, add the bias."""
    out = op_like("rms_norm" if norm.impl.startswith("rms") else "norm", x)
    sizes = (x.ne[0], x.ne[1] if norm.lead else 1)
    if norm.affine:
        builder.pin(out)
        out = op_like("mul", out, builder.layer_weight(f"{name}.weight", *sizes))
    if norm.bias:
        out = op_like("add", out, builder.layer_weight(f"{name}.bias", *sizes))
    return out


def project(
    builder: GraphBuilder, linear: Linear, x: GraphTensor, name: str, *, share: int = 1
) -> GraphTensor:
    """x times a weight, plus its bias; `share`: the weight is one of that many equal parts."""
    outs = linear.outs[1] // share
    out = mul_mat(builder.layer_weight(f"{name}.weight", linear.ins[1], outs), x)
    if linear.bias:
        out = op_like("add", out, builder.layer_weight(f"{name}.bias", outs))
    return out


def attention(builder: GraphBuilder, mixer: Attention, x: GraphTensor) -> GraphTensor:
    """Attention of x, which is the norm's output: from the projections to the output's."""
    queries, keys, values, gate = _heads(builder, mixer, x)
    if mixer.rotary_dim:
        axes = 4 if builder.arch.family in AXES else 1
        positions = builder.input_tensor("positions", builder.setting.tokens * axes)
        queries, keys = op_like("rope", queries, positions), op_like("rope", keys, positions)
    if builder.arch.family in SCALED:
        queries = op_like("scale", queries)
    if builder.arch.family in TEMPERED:  # norms after rotary, or a scale for each token
        if mixer.rotary_dim:
            queries, keys = op_like("rms_norm", queries), op_like("rms_norm", keys)
        else:
            scale = builder.input_tensor("attn_scale", 1, 1, builder.setting.tokens, kind="F32")
            queries = op_like("mul", queries, scale)
    out = _cached_attention(builder, mixer, (queries, keys, values))
    if gate is not None:
        out = op_like("mul", out, op_like("unary", new_op("cont", out.ne, (gate,))))
    return project(builder, mixer.output, out, "attn_output")


def _heads(
    builder: GraphBuilder, mixer: Attention, x: GraphTensor
) -> tuple[GraphTensor, GraphTensor, GraphTensor, GraphTensor | None]:
    """Queries, keys and values by heads, after the model's norms of them; and the gate, which is
    the other half of the queries' projection (Qwen3-Next).
    """
    t, d, dv = x.ne[1], mixer.head_dim, mixer.value_dim or mixer.head_dim
    names = ("attn_q", "attn_k", "attn_v")
    counts = ((mixer.heads, d), (mixer.kv_heads, d), (mixer.kv_heads, dv))
    if len(mixer.inputs) == 1 and builder.arch.family != "baichuan":
        fused = project(builder, mixer.inputs[0], x, "attn_qkv")
        rotary = bool(mixer.rotary_dim)
        sizes = enumerate(counts)
        flat = [_head_view(builder, fused, i, n, size, rotary) for i, (n, size) in sizes]
    elif len(mixer.inputs) == 1:
        flat = [project(builder, mixer.inputs[0], x, name, share=3) for name in names]
    else:
        named = zip(mixer.inputs, names, strict=True)
        flat = [project(builder, one, x, name) for one, name in named]
    gate = None
    if len(mixer.inputs) > 1 and flat[0].ne[0] == 2 * mixer.heads * d:
        strides = (2 * d * 4, flat[0].nb[1])
        flat[0], gate = (view(flat[0], (d, mixer.heads, t), strides) for _ in range(2))
    all_heads = bool(mixer.norms) and mixer.norms[0].size[1] > d  # one norm over all heads
    for i, norm in enumerate(mixer.norms):
        if all_heads:
            flat[i] = apply_norm(builder, flat[i], norm, f"{names[i]}_norm")
    heads = [
        one if one.view is not None else reshape(one, size, n, t)
        for one, (n, size) in zip(flat, counts, strict=True)
    ]
    for i, norm in enumerate(mixer.norms if builder.arch.family not in TEMPERED else ()):
        if not all_heads:
            heads[i] = apply_norm(builder, heads[i], norm, f"{names[i]}_norm")
    return heads[0], heads[1], heads[2], gate


def _head_view(
    builder: GraphBuilder, fused: GraphTensor, which: int, heads: int, size: int, rotary: bool
) -> GraphTensor:
    """Queries, keys or values of a fused projection; older builds copy them out of it."""
    build, t = builder.setting.build, fused.ne[1]
    views = SPLIT_VIEWS if rotary and which < 2 else ALL_VIEWS
    if build >= views:
        return view(fused, (size, heads, t), (size * 4, fused.nb[1]))
    return new_op("cont", (heads * size, t), (view(fused, (heads * size, t), (fused.nb[1],)),))


def _rotate(x: GraphTensor, matrix: GraphTensor) -> GraphTensor:
    """x times a Hadamard matrix, block by block."""
    n = matrix.ne[0]
    if x.nb == GraphTensor("", x.kind, x.ne).nb:
        flat = reshape(x, n, x.numel // n)
    else:
        flat = new_op("cont", (n, x.numel // n), (x,))
    return reshape(mul_mat(matrix, flat), *x.ne)


def rotations(
    builder: GraphBuilder, head: int, value: int, end: str
) -> tuple[GraphTensor | None, GraphTensor | None]:
    """Hadamard matrices of a quantized cache: the largest that fits a key head, 64 for values."""
    setting = builder.setting
    if setting.build < ROTATED:
        return None, None
    size = 64
    while head % (2 * size) == 0:
        size *= 2
    keys = values = None
    if quantized(setting.keys) and head % 64 == 0:
        keys = builder.input_tensor(f"k_rot{end}", size, size, kind="F32")
    if quantized(setting.values) and value % 64 == 0 and value:
        values = builder.input_tensor(f"v_rot{end}", 64, 64, kind="F32")
    return keys, values


def _cached_attention(builder: GraphBuilder, mixer: Attention, heads: Heads) -> GraphTensor:
    """Write keys and values to the cache, and attend to all of its cells."""
    queries, keys, values = heads
    setting, expand = builder.setting, builder.graph.expand
    g, d, dv = mixer.kv_heads, mixer.head_dim, mixer.value_dim or mixer.head_dim
    swa = slides(builder.arch, builder.index) and setting.window_cells > 0
    c = setting.window_cells if swa else setting.cells
    end = "_swa" if swa else ""
    rotate_k, rotate_v = rotations(builder, d, dv, end)
    if rotate_k is not None:
        queries, keys = _rotate(queries, rotate_k), _rotate(keys, rotate_k)
    if rotate_v is not None:
        values = _rotate(values, rotate_v)
    order = (queries, keys, values)
    if setting.build >= VALUES_FIRST and not setting.window_cells:
        order = (queries, values, keys)
    for one in order:
        expand(one)
    cache_k = builder.cache("k", setting.keys, g * d, c, setting.streams)
    cache_v = builder.cache("v", setting.values, g * dv, c, setting.streams)
    store_rows(builder, cache_k, keys, f"k_idxs{end}")
    store_rows(builder, cache_v, values, f"v_idxs{end}", transposed=not setting.flash)
    k = view(cache_k, (d, g, c, setting.streams))
    v = value_view(cache_v, setting, dv, g, c)
    mask = builder.mask(c, f"mask{end}")
    sinks = builder.layer_weight("attn_sinks.weight", mixer.heads) if mixer.sinks else None
    out = attend(builder, (queries, k, v), mask, dv, sinks=sinks)
    return _rotate(out, rotate_v) if rotate_v is not None else out
