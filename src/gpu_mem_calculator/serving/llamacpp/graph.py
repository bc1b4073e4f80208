"""The compute graph of a whole model, from the tokens to the logits.

llama.cpp b10586 src/models/*.cpp: most differ by a norm or a bias only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...model.arch import Arch, Layer
from ...model.blocks import Attention, LatentAttention, Moe, Recurrence, StateSpace
from .attention import apply_norm, attention
from .delta import delta_net
from .feedforward import dense, experts
from .graph_inputs import GraphBuilder, GraphRun, LayerDevices
from .graph_tensors import ComputeGraph, GraphTensor, get_rows, mul_mat, op_like
from .latent import latent_attention
from .state_space import state_space
from .versions import FIRST_NORM, LATE, TWO_EMBEDDINGS

# Families that scale their embeddings.
EMBEDDING_SCALED = frozenset({"gemma", "gemma2", "gemma3", "gemma3_text", "granite"})
RESIDUAL_FIRST = frozenset(
    {"phi3", "phimoe", "jamba"}
)  # x + y and not y + x: the first may be overwritten
# Families whose last layer computes every token (src/models/openai-moe.cpp).
LATE_OUTPUTS = frozenset({"gpt_oss"})
# Families whose final norm, too, computes every token, since a draft may read it.
LATER_OUTPUTS = frozenset({"qwen3_next", "qwen3_5", "qwen3_5_moe", "nemotron_h"})


def graph(
    arch: Arch,
    setting: GraphRun,
    devices: LayerDevices,
    kinds: Mapping[str, str],
    places: Sequence[int],
) -> ComputeGraph:
    """The graph of the layers at `places`; equal ones in between may be left out."""
    builder = GraphBuilder(arch, setting, devices, kinds)
    x = _embed(builder)
    rows = builder.input_tensor("out_ids", setting.outputs)
    late = arch.family in LATE_OUTPUTS and setting.build >= LATE
    later = arch.family in LATER_OUTPUTS
    for place in places:
        last = place == len(arch.layers) - 1 and not late and not later
        x = _layer(builder, arch.layers[place], x, place, rows if last else None)
    if late:
        x = get_rows(x, rows)
    if arch.final_norm is not None:
        x = apply_norm(builder, x, arch.final_norm, -1, "output_norm")
    x.is_output = setting.build >= TWO_EMBEDDINGS
    if later:
        x = get_rows(x, rows)
        x.is_output = True
    logits = mul_mat(_head(builder), x)
    if arch.head is not None and arch.head.bias:
        bias = builder.weight("output.bias", arch.vocab, place=devices.output)
        logits = op_like("add", logits, bias)
    logits.is_output = True
    builder.graph.expand(logits)
    return builder.graph


def _head(builder: GraphBuilder) -> GraphTensor:
    """The head's weight; a tied one is a copy of the embedding."""
    arch, devices = builder.arch, builder.devices
    name = "output.weight" if arch.head is not None else "token_embd.weight"
    return builder.weight(name, arch.hidden, arch.vocab, place=devices.output)


def _embed(builder: GraphBuilder) -> GraphTensor:
    """The tokens' embeddings; the table is always on the host."""
    arch, setting, devices, host = (
        builder.arch,
        builder.setting,
        builder.devices,
        builder.devices.host,
    )
    table = builder.weight("token_embd.weight", arch.hidden, arch.vocab, place=host)
    x = get_rows(table, builder.input_tensor("tokens", setting.tokens))
    if setting.build >= TWO_EMBEDDINGS:
        builder.graph.expand(x)
        builder.graph.expand(
            builder.input_tensor("embeddings", arch.hidden, setting.tokens, kind="F32")
        )
    if arch.family in EMBEDDING_SCALED:
        x = op_like("scale", x)
    for weight in arch.embedding:
        if "vocab" not in dict(weight.dims):
            positions = builder.weight(
                "position_embd.weight", arch.hidden, arch.max_seq_len, place=host
            )
            x = op_like(
                "add", x, get_rows(positions, builder.input_tensor("positions", setting.tokens))
            )
    if arch.embedding_norm is not None:
        norm = arch.embedding_norm
        out = builder.pin(op_like("norm", x), 0)
        first = devices.layers[0] if setting.build >= FIRST_NORM else host
        out = op_like(
            "mul", out, builder.weight("token_embd_norm.weight", arch.hidden, place=first)
        )
        x = (
            op_like("add", out, builder.weight("token_embd_norm.bias", arch.hidden, place=first))
            if norm.bias
            else out
        )
    return x


def _mixer(builder: GraphBuilder, layer: Layer, x: GraphTensor, place: int) -> GraphTensor:
    mixer = layer.mixer
    if isinstance(mixer, LatentAttention):
        return latent_attention(builder, mixer, x, place)
    if isinstance(mixer, StateSpace):
        return state_space(builder, mixer, x, place)
    if isinstance(mixer, Recurrence):
        builder.graph.expand(x)
        return delta_net(builder, mixer, x, place)
    assert isinstance(mixer, Attention)
    return attention(builder, mixer, x, place)


def _feed_forward(builder: GraphBuilder, layer: Layer, x: GraphTensor, place: int) -> GraphTensor:
    if isinstance(layer.mlp, Moe):
        return experts(builder, layer.mlp, x, place)
    assert layer.mlp is not None
    return dense(builder, layer.mlp, x, place)


def _layer(
    builder: GraphBuilder, layer: Layer, x: GraphTensor, place: int, rows: GraphTensor | None
) -> GraphTensor:
    """One layer; `rows`: the only tokens that are computed after attention, in the last layer."""
    before = layer.norm("pre")
    if layer.mixer is None or layer.mlp is None:
        return _single(builder, layer, x, place, rows)
    x_normed = apply_norm(builder, x, before, place, "attn_norm") if before else x
    second = layer.norm("pre_mlp")
    if layer.parallel and second and builder.arch.family == "falcon":
        # two norms in parallel: the first is the feed-forward's, the second attention's
        attn = _mixer(builder, layer, apply_norm(builder, x, second, place, "attn_norm_2"), place)
        return _parallel(builder, layer, x, x_normed, attn, place, rows)
    attn = _mixer(builder, layer, x_normed, place)
    if layer.parallel:
        return _parallel(builder, layer, x, None if second else x_normed, attn, place, rows)
    if rows is not None:
        attn, x = get_rows(attn, rows), get_rows(x, rows)
    after = layer.norm("post")
    if after:
        attn = apply_norm(builder, attn, after, place, "post_attention_norm")
    x = op_like("add", x, attn) if builder.arch.family == "jamba" else op_like("add", attn, x)
    out = apply_norm(builder, x, second, place, "ffn_norm") if second else x
    out = _feed_forward(builder, layer, out, place)
    last_norm = layer.norm("post_mlp")
    if last_norm:
        out = apply_norm(builder, out, last_norm, place, "post_ffw_norm")
    if builder.arch.family in RESIDUAL_FIRST:
        return op_like("add", x, out)
    return op_like("add", out, x)


def _single(
    builder: GraphBuilder, layer: Layer, x: GraphTensor, place: int, rows: GraphTensor | None
) -> GraphTensor:
    """A layer that has only a mixer, only a feed-forward, or neither (Nemotron Ultra)."""
    if layer.mixer is None and layer.mlp is None:
        return x if rows is None else get_rows(x, rows)
    norm = layer.norm("pre") or layer.norm("pre_mlp")
    out = apply_norm(builder, x, norm, place, "attn_norm") if norm else x
    out = (
        _feed_forward(builder, layer, out, place)
        if layer.mixer is None
        else _mixer(builder, layer, out, place)
    )
    if rows is not None:
        out, x = get_rows(out, rows), get_rows(x, rows)
    return op_like("add", out, x)


def _parallel(
    builder: GraphBuilder,
    layer: Layer,
    x: GraphTensor,
    mlp_input: GraphTensor | None,
    attn: GraphTensor,
    place: int,
    rows: GraphTensor | None,
) -> GraphTensor:
    """Attention and feed-forward in parallel.

    `mlp_input`: what the feed-forward reads; None: x after the layer's own second norm.
    """
    if rows is not None:
        attn, x = get_rows(attn, rows), get_rows(x, rows)
        mlp_input = get_rows(mlp_input, rows) if mlp_input is not None else None
    if mlp_input is None:
        norm = layer.norm("pre_mlp")
        assert norm is not None
        mlp_input = apply_norm(builder, x, norm, place, "ffn_norm")
    out = _feed_forward(builder, layer, mlp_input, place)
    if builder.arch.family == "phi":
        return op_like("add", op_like("add", attn, out), x)
    if builder.arch.family == "falcon":
        return op_like("add", op_like("add", out, attn), x)
    return op_like("add", op_like("add", out, x), attn)
