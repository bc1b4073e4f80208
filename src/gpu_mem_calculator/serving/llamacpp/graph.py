"""The compute graph of a whole model, from the tokens to the logits.

llama.cpp b10586 src/models/*.cpp: most differ by a norm or a bias only.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...models.arch.arch import Layer
from ...models.arch.blocks import Attention, LatentAttention, Moe, Recurrence, StateSpace
from .attention import apply_norm, attention
from .delta import delta_net
from .feedforward import dense, experts
from .graph_inputs import GraphBuilder
from .graph_tensors import ComputeGraph, GraphTensor, get_rows, op_like
from .latent import latent_attention
from .state_space import state_space
from .versions import FIRST_NORM, LATE, TWO_EMBEDDINGS

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
    if rows is not None:
        attn, x = get_rows(attn, rows), get_rows(x, rows)
    after = layer.norm("post")
    if after:
        attn = apply_norm(builder, attn, after, "post_attention_norm")
    x = op_like("add", x, attn) if builder.arch.family == "jamba" else op_like("add", attn, x)
    out = _feed_forward(builder, layer, apply_norm(builder, x, second, "ffn_norm") if second else x)
    last_norm = layer.norm("post_mlp")
    if last_norm:
        out = apply_norm(builder, out, last_norm, "post_ffw_norm")
    if builder.arch.family in RESIDUAL_FIRST:
        return op_like("add", x, out)
    return op_like("add", out, x)


def _single(
    builder: GraphBuilder, layer: Layer, x: GraphTensor, rows: GraphTensor | None
) -> GraphTensor:
    """A layer that has only a mixer, only a feed-forward, or neither (Nemotron Ultra)."""
    if layer.mixer is None and layer.mlp is None:
        return x if rows is None else get_rows(x, rows)
    norm = layer.norm("pre") or layer.norm("pre_mlp")
    out = apply_norm(builder, x, norm, "attn_norm") if norm else x
    out = (_feed_forward if layer.mixer is None else _mixer)(builder, layer, out)
    if rows is not None:
        out, x = get_rows(out, rows), get_rows(x, rows)
    return op_like("add", out, x)


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
    if rows is not None:
        attn, x = get_rows(attn, rows), get_rows(x, rows)
        mlp_input = get_rows(mlp_input, rows) if mlp_input is not None else None
    if mlp_input is None:
        norm = layer.norm("pre_mlp")
        assert norm is not None
        mlp_input = apply_norm(builder, x, norm, "ffn_norm")
    out = _feed_forward(builder, layer, mlp_input)
    if builder.arch.family == "phi":
        return op_like("add", op_like("add", attn, out), x)
    if builder.arch.family == "falcon":
        return op_like("add", op_like("add", out, attn), x)
    return op_like("add", op_like("add", out, x), attn)
