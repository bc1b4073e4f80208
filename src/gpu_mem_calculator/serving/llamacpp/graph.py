"""The compute graph of a whole model, from the tokens to the logits, with two of its mixers.

llama.cpp b10586 src/models/*.cpp: most differ by a norm or a bias only; deepseek2.cpp for latent
attention; qwen35.cpp build_layer_attn_linear and delta-net-base.cpp with its one op for Gated
DeltaNet (Qwen3-Next, Qwen3.5).

Legend: h value heads, g key heads, d size of a head, t tokens of each of q sequences.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...models.arch.arch import Layer
from ...models.arch.blocks import Attention, LatentAttention, Moe, Recurrence, StateSpace
from .attention import apply_norm, attention, project
from .attention_scores import Heads, attend, store_rows, value_view
from .feedforward import dense, experts
from .graph_inputs import GraphBuilder
from .graph_tensors import (
    ComputeGraph,
    GraphTensor,
    contiguous,
    get_rows,
    mul_mat,
    new_op,
    op_like,
    permute,
    reshape,
    view,
    write_into,
)
from .state_space import convolve, state, state_rows, state_space
from .versions import FIRST_NORM, LATE, LATENT, NO_VALUES, TWO_EMBEDDINGS, VALUES_FIRST


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
    sources = (*_parts(builder, mixer, conv), decay, beta, states)
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


def _latent_queries(builder: GraphBuilder, mixer: LatentAttention, x: GraphTensor) -> GraphTensor:
    """Queries by heads, through their own latents where the model has them."""
    q = x
    if len(mixer.query) == 2 and mixer.query_norm is not None:
        q = project(builder, mixer.query[0], q, "attn_q_a")
        q = apply_norm(builder, q, mixer.query_norm, "attn_q_a_norm")
        q = project(builder, mixer.query[1], q, "attn_q_b")
    else:
        q = project(builder, mixer.query[0], q, "attn_q")
    return reshape(q, mixer.nope_dim + mixer.rope_dim, mixer.heads, x.ne[1])


def _unpacked_attention(
    builder: GraphBuilder, mixer: LatentAttention, x: GraphTensor
) -> GraphTensor:
    """Latent attention before b5137: keys and values of every head are computed and cached
    (b4327 src/llama.cpp build_deepseek2).
    """
    setting, expand = builder.setting, builder.graph.expand
    t, h, rank, rope = x.ne[1], mixer.heads, mixer.kv_rank, mixer.rope_dim
    nope, value, c, s = mixer.nope_dim, mixer.value_dim, setting.cells, setting.streams
    positions = builder.input_tensor("positions", t)
    q = _latent_queries(builder, mixer, x)
    q_nope, q_rope = (view(q, (size, h, t), (q.nb[1], q.nb[2])) for size in (nope, rope))
    fused = project(builder, mixer.kv_a, x, "attn_kv_a_mqa")
    compressed = new_op("cont", (rank, t), (view(fused, (rank, t), (fused.nb[1],)),))
    compressed = apply_norm(builder, compressed, mixer.kv_norm, "attn_kv_a_norm")
    kv = builder.product("attn_kv_b.weight", h * (nope + value), compressed)
    strides = ((nope + value) * 4, kv.nb[1])
    values = new_op("cont", (value, h, t), (view(kv, (value, h, t), strides),))
    q_rope = op_like("rope", new_op("cont", (rope, h, t), (q_rope,)), positions)
    k_rope = view(fused, (rope, 1, t), (fused.nb[1], fused.nb[1]))
    k_rope = op_like("rope", new_op("cont", (rope, 1, t), (k_rope,)), positions)
    queries = new_op("concat", (nope + rope, h, t), (q_nope, q_rope))
    repeated = new_op("repeat", (rope, h, t), (k_rope,))
    keys = new_op("concat", (nope + rope, h, t), (view(kv, (nope, h, t), strides), repeated))
    for one in (queries, keys, values):
        expand(one)
    cache_k = builder.cache("k", setting.keys, h * (nope + rope), c, s)
    cache_v = builder.cache("v", setting.values, h * value, c, s)
    store_rows(builder, cache_k, keys, "k_idxs")
    store_rows(builder, cache_v, values, "v_idxs", transposed=not setting.flash)
    k, v = view(cache_k, (nope + rope, h, c, s)), value_view(cache_v, setting, value, h, c)
    out = attend(builder, (queries, k, v), builder.mask(c, "mask"), value)
    return project(builder, mixer.output, out, "attn_output")


def latent_attention(builder: GraphBuilder, mixer: LatentAttention, x: GraphTensor) -> GraphTensor:
    """Multi-head latent attention with the up-projections absorbed: one key head, no values."""
    if builder.setting.build < LATENT:
        return _unpacked_attention(builder, mixer, x)
    t, h = x.ne[1], mixer.heads
    rank, rope, nope = mixer.kv_rank, mixer.rope_dim, mixer.nope_dim
    positions = builder.input_tensor("positions", t)
    q = _latent_queries(builder, mixer, x)
    fused = project(builder, mixer.kv_a, x, "attn_kv_a_mqa")
    compressed = view(fused, (rank, t), (fused.nb[1],))
    k_rope = op_like("rope", view(fused, (rope, 1, t), (fused.nb[1], fused.nb[1])), positions)
    compressed = apply_norm(builder, compressed, mixer.kv_norm, "attn_kv_a_norm")
    q_nope = view(q, (nope, h, t), (q.nb[1], q.nb[2]))
    q_rope = op_like("rope", view(q, (rope, h, t), (q.nb[1], q.nb[2])), positions)
    absorbed = builder.layer_weight("attn_k_b.weight", nope, rank, h)
    q_nope = permute(mul_mat(absorbed, permute(q_nope, 0, 2, 1, 3)), 0, 2, 1, 3)
    queries = new_op("concat", (rank + rope, h, t), (q_nope, q_rope))
    values = reshape(compressed, rank, 1, t)
    keys = new_op("concat", (rank + rope, 1, t), (values, k_rope))
    out = _cached_latents(builder, mixer, (queries, keys, values))
    return project(builder, mixer.output, out, "attn_output")


def _cached_latents(builder: GraphBuilder, mixer: LatentAttention, heads: Heads) -> GraphTensor:
    queries, keys, values = heads
    setting, expand = builder.setting, builder.graph.expand
    rank, width = mixer.kv_rank, mixer.kv_rank + mixer.rope_dim
    c, s = setting.cells, setting.streams
    order = (queries, values, keys) if setting.build >= VALUES_FIRST else (queries, keys, values)
    for one in order:
        expand(one)
    cache_k = builder.cache("k", setting.keys, width, c, s)
    store_rows(builder, cache_k, keys, "k_idxs")
    k = view(cache_k, (width, 1, c, s))
    if setting.build >= NO_VALUES:
        v = view(k, (rank, 1, c, s), k.nb[1:])
    else:
        cache_v = builder.cache("v", setting.values, rank, c, s)
        store_rows(builder, cache_v, values, "v_idxs", transposed=not setting.flash)
        v = value_view(cache_v, setting, rank, 1, c)
    up = builder.layer_weight("attn_v_b.weight", rank, mixer.value_dim, mixer.heads)
    return attend(builder, (queries, k, v), builder.mask(c, "mask"), rank, absorbed=up)


# Families that scale their embeddings.
EMBEDDING_SCALED = frozenset({"gemma", "gemma2", "gemma3", "gemma3_text", "granite"})
# Families that compute x + y and not y + x: the first may be overwritten.
RESIDUAL_FIRST = frozenset({"phi3", "phimoe", "jamba"})
# Families whose last layer computes every token (src/models/openai-moe.cpp).
LATE_OUTPUTS = frozenset({"gpt_oss"})
# Families whose final norm, too, computes every token, since a draft may read it.
LATER_OUTPUTS = frozenset({"qwen3_next", "qwen3_5", "qwen3_5_moe", "nemotron_h"})


def graph(builder: GraphBuilder, places: Sequence[int]) -> ComputeGraph:
    """The graph of the layers at `places`; equal ones in between may be left out."""
    arch, setting, x = builder.arch, builder.setting, _embed(builder)
    rows = builder.input_tensor("out_ids", setting.outputs)
    late = arch.family in LATE_OUTPUTS and setting.build >= LATE
    later = arch.family in LATER_OUTPUTS
    for place in places:
        last = place == len(arch.layers) - 1 and not late and not later
        x = _layer(builder.at(place), arch.layers[place], x, rows if last else None)
    if late:
        x = get_rows(x, rows)
    if arch.final_norm is not None:
        x = apply_norm(builder, x, arch.final_norm, "output_norm")
    x.is_output = setting.build >= TWO_EMBEDDINGS
    if later:
        x = get_rows(x, rows)
        x.is_output = True
    logits = builder.product("output.weight" if arch.head else "token_embd.weight", arch.vocab, x)
    if arch.head is not None and arch.head.bias:
        logits = op_like("add", logits, builder.layer_weight("output.bias", arch.vocab))
    logits.is_output = True
    builder.graph.expand(logits)
    return builder.graph


def _embed(builder: GraphBuilder) -> GraphTensor:
    """The tokens' embeddings; the table is always on the host."""
    arch, setting, host = builder.arch, builder.setting, builder.devices.host
    table = builder.weight("token_embd.weight", arch.hidden, arch.vocab, place=host)
    x = get_rows(table, builder.input_tensor("tokens", setting.tokens))
    if setting.build >= TWO_EMBEDDINGS:
        builder.graph.expand(x)
        sizes = (arch.hidden, setting.tokens)
        builder.graph.expand(builder.input_tensor("embeddings", *sizes, kind="F32"))
    if arch.family in EMBEDDING_SCALED:
        x = op_like("scale", x)
    for weight in arch.embedding:
        if "vocab" not in dict(weight.dims):
            sizes = (arch.hidden, arch.max_seq_len)
            table = builder.weight("position_embd.weight", *sizes, place=host)
            positions = get_rows(table, builder.input_tensor("positions", setting.tokens))
            x = op_like("add", x, positions)
    norm = arch.embedding_norm
    if norm is not None:
        place = builder.devices.layers[0] if setting.build >= FIRST_NORM else host
        gain, bias = (
            builder.weight(f"token_embd_norm.{name}", arch.hidden, place=place)
            for name in ("weight", "bias")
        )
        x = op_like("mul", builder.at(0).pin(op_like("norm", x)), gain)
        x = op_like("add", x, bias) if norm.bias else x
    return x


def _mixer(builder: GraphBuilder, layer: Layer, x: GraphTensor) -> GraphTensor:
    mixer = layer.mixer
    if isinstance(mixer, LatentAttention):
        return latent_attention(builder, mixer, x)
    if isinstance(mixer, StateSpace):
        return state_space(builder, mixer, x)
    if isinstance(mixer, Recurrence):
        builder.graph.expand(x)
        return delta_net(builder, mixer, x)
    assert isinstance(mixer, Attention)
    return attention(builder, mixer, x)


def _feed_forward(builder: GraphBuilder, layer: Layer, x: GraphTensor) -> GraphTensor:
    if isinstance(layer.mlp, Moe):
        return experts(builder, layer.mlp, x)
    assert layer.mlp is not None
    return dense(builder, layer.mlp, x)


def _layer(
    builder: GraphBuilder, layer: Layer, x: GraphTensor, rows: GraphTensor | None
) -> GraphTensor:
    """One layer; `rows`: the only tokens that are computed after attention, in the last layer."""
    before = layer.norm("pre")
    if layer.mixer is None or layer.mlp is None:
        return _single(builder, layer, x, rows)
    x_normed = apply_norm(builder, x, before, "attn_norm") if before else x
    second = layer.norm("pre_mlp")
    if layer.parallel and second and builder.arch.family == "falcon":
        # two norms in parallel: the first is the feed-forward's, the second attention's
        attn = _mixer(builder, layer, apply_norm(builder, x, second, "attn_norm_2"))
        return _parallel(builder, layer, (x, x_normed, attn), rows)
    attn = _mixer(builder, layer, x_normed)
    if layer.parallel:
        return _parallel(builder, layer, (x, None if second else x_normed, attn), rows)
    attn, x = _last_rows(rows, attn, x)
    after = layer.norm("post")
    if after:
        attn = apply_norm(builder, attn, after, "post_attention_norm")
    x = op_like("add", x, attn) if builder.arch.family == "jamba" else op_like("add", attn, x)
    out = _feed_forward(builder, layer, apply_norm(builder, x, second, "ffn_norm") if second else x)
    last_norm = layer.norm("post_mlp")
    if last_norm:
        out = apply_norm(builder, out, last_norm, "post_ffw_norm")
    residual_first = builder.arch.family in RESIDUAL_FIRST
    return op_like("add", x, out) if residual_first else op_like("add", out, x)


def _single(
    builder: GraphBuilder, layer: Layer, x: GraphTensor, rows: GraphTensor | None
) -> GraphTensor:
    """A layer that has only a mixer, only a feed-forward, or neither (Nemotron Ultra)."""
    if layer.mixer is None and layer.mlp is None:
        return x if rows is None else get_rows(x, rows)
    norm = layer.norm("pre") or layer.norm("pre_mlp")
    out = apply_norm(builder, x, norm, "attn_norm") if norm else x
    out = (_feed_forward if layer.mixer is None else _mixer)(builder, layer, out)
    return op_like("add", *_last_rows(rows, out, x))


def _last_rows(rows: GraphTensor | None, *tensors: GraphTensor) -> tuple[GraphTensor, ...]:
    """The tensors of the only tokens that are still computed, where not all are."""
    return tensors if rows is None else tuple(get_rows(one, rows) for one in tensors)


def _parallel(
    builder: GraphBuilder,
    layer: Layer,
    inputs: tuple[GraphTensor, GraphTensor | None, GraphTensor],
    rows: GraphTensor | None,
) -> GraphTensor:
    """Attention and feed-forward in parallel.

    `inputs`: x, what the feed-forward reads (None: x after the layer's own second norm), and
    attention's output.
    """
    x, mlp_input, attn = inputs
    attn, x = _last_rows(rows, attn, x)
    if mlp_input is not None:
        (mlp_input,) = _last_rows(rows, mlp_input)
    else:
        norm = layer.norm("pre_mlp")
        assert norm is not None
        mlp_input = apply_norm(builder, x, norm, "ffn_norm")
    out = _feed_forward(builder, layer, mlp_input)
    orders = {"phi": (attn, out, x), "falcon": (out, attn, x)}
    first, second, third = orders.get(builder.arch.family, (out, x, attn))
    return op_like("add", op_like("add", first, second), third)
