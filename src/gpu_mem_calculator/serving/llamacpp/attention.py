"""Attention as a graph: projections, norms, rotary, the cache, the scores.

llama.cpp b10586 src/llama-graph.cpp build_qkv, build_attn, build_attn_mha; src/models/*.cpp.
Legend: a heads, g key-value heads, d head size, t tokens, c cells, s streams.
"""

from __future__ import annotations

from ...model.blocks import Attention, Linear, Norm
from .graph_inputs import GraphBuilder, GraphRun, slides
from .graph_tensors import (
    GraphTensor,
    alike,
    mul_mat,
    new,
    permute,
    quantized,
    reshape,
    view,
    written,
)
from .versions import ALL_VIEWS, FLASH_SPACE, ROTATED, SET_ROWS, SPLIT_VIEWS, VALUES_FIRST

HEAD_SIZES = frozenset({40, 64, 72, 80, 96, 112, 128, 256})  # of CUDA's flash attention
SCALED = frozenset({"phi", "phi3", "phimoe", "gemma", "gemma2", "gemma3", "gemma3_text"})  # queries
# Positions along four axes, of which three are an image's.
AXES = frozenset({"qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text", "qwen2_vl",
                  "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe"})  # fmt: skip
TEMPERED = frozenset({"llama4", "llama4_text"})
CACHE_KINDS = frozenset({"F32", "F16", "BF16", "Q8_0", "Q4_0"})  # in a build without ALL_QUANTS


def normed(site: GraphBuilder, x: GraphTensor, norm: Norm, index: int, name: str) -> GraphTensor:
    """build_norm: normalize, times the gain, plus the bias."""
    impl = "rms_norm" if norm.impl.startswith("rms") else "norm"
    made = alike(impl, x)
    size = x.ne[0]
    lead = x.ne[1] if norm.lead else 1
    if norm.affine:
        site.pin(made, index)
        made = alike("mul", made, _norm_weight(site, index, f"{name}.weight", size, lead))
    if norm.bias:
        made = alike("add", made, _norm_weight(site, index, f"{name}.bias", size, lead))
    return made


def _norm_weight(site: GraphBuilder, index: int, name: str, size: int, lead: int) -> GraphTensor:
    if index < 0:
        return site.weight(name, size, lead, place=site.where.output)
    return site.layer_weight(index, name, size, lead)


def projected(site: GraphBuilder, linear: Linear, x: GraphTensor, index: int, name: str, *,
              share: int = 1) -> GraphTensor:  # fmt: skip
    """A product with a weight, and its bias."""
    outs = linear.outs[1] // share
    made = mul_mat(site.layer_weight(index, f"{name}.weight", linear.ins[1], outs), x)
    if linear.bias:
        made = alike("add", made, site.layer_weight(index, f"{name}.bias", outs))
    return made


def attended(site: GraphBuilder, mixer: Attention, x: GraphTensor, index: int) -> GraphTensor:
    """One attention block on its normed input."""
    queries, keys, values, gate = _heads(site, mixer, x, index)
    if mixer.rotary_dim:
        axes = 4 if site.arch.family in AXES else 1
        where = site.given("positions", site.how.tokens * axes)
        queries, keys = alike("rope", queries, where), alike("rope", keys, where)
    if site.arch.family in SCALED:
        queries = alike("scale", queries)
    if site.arch.family in TEMPERED:  # norms behind rotary, or a scale of each token
        if mixer.rotary_dim:
            queries, keys = alike("rms_norm", queries), alike("rms_norm", keys)
        else:
            scale = site.given("attn_scale", 1, 1, site.how.tokens, kind="F32")
            queries = alike("mul", queries, scale)
    cur = _cached(site, mixer, index, queries, keys, values)
    if gate is not None:
        cur = alike("mul", cur, alike("unary", new("cont", cur.ne, (gate,))))
    return projected(site, mixer.output, cur, index, "attn_output")


def _heads(site: GraphBuilder, mixer: Attention, x: GraphTensor, index: int
           ) -> tuple[GraphTensor, GraphTensor, GraphTensor, GraphTensor | None]:  # fmt: skip
    """Queries, keys and values by heads, normed where the model norms them; and a gate that is
    the other half of the queries' projection (Qwen3-Next).
    """
    t, d, dv = x.ne[1], mixer.head_dim, mixer.value_dim or mixer.head_dim
    names = ("attn_q", "attn_k", "attn_v")
    counts = ((mixer.heads, d), (mixer.kv_heads, d), (mixer.kv_heads, dv))
    if len(mixer.inputs) == 1 and site.arch.family != "baichuan":
        both = projected(site, mixer.inputs[0], x, index, "attn_qkv")
        flat = [_part(site, both, i, n, size, bool(mixer.rotary_dim))
                for i, (n, size) in enumerate(counts)]  # fmt: skip
    elif len(mixer.inputs) == 1:
        flat = [projected(site, mixer.inputs[0], x, index, name, share=3) for name in names]
    else:
        flat = [projected(site, one, x, index, name)
                for one, name in zip(mixer.inputs, names, strict=True)]  # fmt: skip
    gate = None
    if len(mixer.inputs) > 1 and flat[0].ne[0] == 2 * mixer.heads * d:
        flat[0], gate = (view(flat[0], (d, mixer.heads, t), (2 * d * 4, flat[0].nb[1]))
                         for _ in range(2))  # fmt: skip
    wide = bool(mixer.norms) and mixer.norms[0].size[1] > d
    for i, norm in enumerate(mixer.norms):
        if wide:
            flat[i] = normed(site, flat[i], norm, index, f"{names[i]}_norm")
    found = [one if one.view is not None else reshape(one, size, n, t)
             for one, (n, size) in zip(flat, counts, strict=True)]  # fmt: skip
    for i, norm in enumerate(mixer.norms if site.arch.family not in TEMPERED else ()):
        if not wide:
            found[i] = normed(site, found[i], norm, index, f"{names[i]}_norm")
    return found[0], found[1], found[2], gate


def _part(
    site: GraphBuilder, both: GraphTensor, which: int, heads: int, size: int, rotary: bool
) -> GraphTensor:
    """Queries, keys or values of a joined projection; older builds copy them out of it."""
    build, t = site.how.build, both.ne[1]
    views = SPLIT_VIEWS if rotary and which < 2 else ALL_VIEWS
    if build >= views:
        return view(both, (size, heads, t), (size * 4, both.nb[1]))
    return new("cont", (heads * size, t), (view(both, (heads * size, t), (both.nb[1],)),))


def _turned(x: GraphTensor, matrix: GraphTensor) -> GraphTensor:
    """A product with a Hadamard matrix, block by block."""
    n = matrix.ne[0]
    if x.nb == GraphTensor("", x.kind, x.ne).nb:
        flat = reshape(x, n, x.numel // n)
    else:
        flat = new("cont", (n, x.numel // n), (x,))
    return reshape(mul_mat(matrix, flat), *x.ne)


def rotations(site: GraphBuilder, head: int, value: int, end: str
              ) -> tuple[GraphTensor | None, GraphTensor | None]:  # fmt: skip
    """Hadamard matrices for a quantized cache: the largest that a key head has, 64 for values."""
    how = site.how
    if how.build < ROTATED:
        return None, None
    size = 64
    while head % (2 * size) == 0:
        size *= 2
    keys = values = None
    if quantized(how.keys) and head % 64 == 0:
        keys = site.given(f"k_rot{end}", size, size, kind="F32")
    if quantized(how.values) and value % 64 == 0 and value:
        values = site.given(f"v_rot{end}", 64, 64, kind="F32")
    return keys, values


def _cached(
    site: GraphBuilder,
    mixer: Attention,
    index: int,
    queries: GraphTensor,
    keys: GraphTensor,
    values: GraphTensor,
) -> GraphTensor:
    """Write keys and values to the cache, and attend to all of it."""
    how, expand = site.how, site.graph.expand
    g, d, dv = mixer.kv_heads, mixer.head_dim, mixer.value_dim or mixer.head_dim
    swa = slides(site.arch, index) and how.window_cells > 0
    c = how.window_cells if swa else how.cells
    end = "_swa" if swa else ""
    turn_k, turn_v = rotations(site, d, dv, end)
    if turn_k is not None:
        queries, keys = _turned(queries, turn_k), _turned(keys, turn_k)
    if turn_v is not None:
        values = _turned(values, turn_v)
    order = (queries, values, keys) if how.build >= VALUES_FIRST and not how.window_cells else (
        queries, keys, values)  # fmt: skip
    for one in order:
        expand(one)
    cache_k = site.cache(index, "k", how.keys, g * d, c, how.streams)
    cache_v = site.cache(index, "v", how.values, g * dv, c, how.streams)
    stored_rows(site, cache_k, keys, f"k_idxs{end}")
    stored_rows(site, cache_v, values, f"v_idxs{end}", turned=not how.flash)
    k = view(cache_k, (d, g, c, how.streams))
    v = shown_values(cache_v, how, dv, g, c)
    mask = site.mask(c, f"mask{end}")
    sinks = site.layer_weight(index, "attn_sinks.weight", mixer.heads) if mixer.sinks else None
    cur = scored(site, queries, k, v, mask, dv, sinks=sinks)
    return _turned(cur, turn_v) if turn_v is not None else cur


def shown_values(
    cache: GraphTensor, how: GraphRun, size: int, heads: int, cells: int
) -> GraphTensor:
    """Values by token, or transposed where a product with the scores reads them."""
    if how.flash:
        return view(cache, (size, heads, cells, how.streams))
    row = cells * cache.nb[0]
    return view(cache, (cells, heads, size, how.streams), (row * size, row, row * size * heads))


def stored_rows(
    site: GraphBuilder, cache: GraphTensor, x: GraphTensor, name: str, *, turned: bool = False
) -> None:
    """x into the cache: rows by their index; a transposed cache takes element by element."""
    how, t = site.how, x.ne[2]
    width = x.ne[0] * x.ne[1]
    if how.build < SET_ROWS:
        target = view(cache, (t, width) if turned else (width * t,))
        rows = permute(reshape(x, width, t), 1, 0, 2, 3) if turned else x
        site.graph.expand(written(target, rows, target, op="cpy"))
        return
    if turned:
        rows = reshape(x, width, t) if x.nb[2] == width * 4 else new("cont", (width, t), (x,))
        rows, target = reshape(rows, 1, width * t), reshape(cache, 1, cache.numel)
        idxs = site.given(name, t * width, kind="I64")
    else:
        rows = view(x, (width, t), (x.nb[2],))
        target = reshape(cache, width, cache.ne[1] * cache.ne[2]) if how.streams > 1 else cache
        idxs = site.given(name, t, kind="I64")
    site.graph.expand(written(target, rows, idxs, target))


def scored(
    site: GraphBuilder,
    q: GraphTensor,
    k: GraphTensor,
    v: GraphTensor,
    mask: GraphTensor,
    value: int,
    *,
    sinks: GraphTensor | None = None,
    absorbed: GraphTensor | None = None,
) -> GraphTensor:
    """build_attn_mha: flash attention in one op, or scores, softmax and their product."""
    how = site.how
    d, a, t, s = *q.ne[:3], how.streams
    q = permute(view(q, (d, a, t // s, s), (q.nb[1], q.nb[2], q.nb[2] * (t // s))), 0, 2, 1, 3)
    apart = v.nb[1] <= v.nb[2]  # values by token: they have to be transposed for a product
    k, v = permute(k, 0, 2, 1, 3), permute(v, 0, 2, 1, 3)
    more = (sinks,) if sinks is not None else ()
    if how.flash:
        cur = new("flash_attn", (value, a, t // s, s), (q, k, v, mask, *more))
        cur.on_gpu = flashes(how.keys, how.values, d, value, a // k.ne[2])
        cur.extra = _space(site, cur, k, v)
        if absorbed is not None:
            cur = mul_mat(absorbed, permute(cur, 0, 2, 1, 3))
            back = permute(cur, 0, 2, 1, 3)
            cur = new("cont", back.ne, (back,))
        cur = reshape(cur, cur.ne[0] * cur.ne[1], cur.ne[2] * cur.ne[3])
    else:
        kq = alike("soft_max", mul_mat(k, q), mask, *more)
        if apart:
            flipped = permute(v, 1, 0, 2, 3)
            v = new("cont", flipped.ne, (flipped,), v.kind)
        kqv = mul_mat(v, kq)
        if absorbed is not None:
            kqv = mul_mat(absorbed, kqv)
        back = permute(kqv, 0, 2, 1, 3)
        cur = new("cont", (back.ne[0] * back.ne[1], back.ne[2] * back.ne[3]), (back,))
        if not how.offload_kqv:
            site.graph.fixed[cur] = site.where.host
    return site.graph.expand(cur)


def flashes(keys: str, values: str, head: int, value: int, queries: int) -> bool:
    """Whether CUDA has a flash kernel (ggml-cuda/fattn.cu ggml_cuda_get_best_fattn_kernel)."""
    if keys != values or keys not in CACHE_KINDS:
        return False
    if head in HEAD_SIZES:
        return value == head
    wide = {192: (128, 8), 320: (256, 32), 512: (512, 2), 576: (512, 2)}
    if head not in wide:
        return False
    size, least = wide[head]
    return value == size and queries % least == 0


def _space(site: GraphBuilder, cur: GraphTensor, k: GraphTensor, v: GraphTensor) -> int:
    """A cache that is not fp16 is copied to it, behind the result."""
    how = site.how
    if how.build < FLASH_SPACE or how.keys == "F16" or not cur.on_gpu:
        return 0
    end = cur.num_bytes
    end = -(-end // 128) * 128 + k.numel * 2
    if v.view is not k.view:
        end = -(-end // 128) * 128 + v.numel * 2
    return end - cur.num_bytes
