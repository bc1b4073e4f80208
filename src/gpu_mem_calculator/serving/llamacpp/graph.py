"""A whole model as a graph, from the tokens to the logits.

llama.cpp b10586 src/models/*.cpp: most differ by a norm or a bias only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...model.arch import Arch, Layer
from ...model.blocks import Attention, LatentAttention, Moe, Recurrence, StateSpace
from .attention import attended, normed
from .delta import delta
from .feedforward import dense, experts
from .graph_inputs import GraphBuilder, GraphRun, LayerDevices
from .graph_tensors import ComputeGraph, GraphTensor, alike, get_rows, mul_mat
from .latent import latent
from .state_space import scanned
from .versions import FIRST_NORM, LATE, TWO_EMBEDDINGS

# Families that scale their embeddings, and those whose last layer computes every token
# (src/models/openai-moe.cpp).
EMBEDDING_SCALED = frozenset({"gemma", "gemma2", "gemma3", "gemma3_text", "granite"})
RESIDUAL_FIRST = frozenset({"phi3", "phimoe", "jamba"})  # an addition takes over its first term
LATE_OUTPUTS = frozenset({"gpt_oss"})
# Those whose final norm is of every token, since drafts may be made from it.
LATER_OUTPUTS = frozenset({"qwen3_next", "qwen3_5", "qwen3_5_moe", "nemotron_h"})


def graph(
    arch: Arch, how: GraphRun, where: LayerDevices, kinds: Mapping[str, str], places: Sequence[int]
) -> ComputeGraph:
    """The graph of the layers at `places`; equal ones in between may be left out."""
    site = GraphBuilder(arch, how, where, kinds)
    x = _embedded(site)
    rows = site.given("out_ids", how.outputs)
    late = arch.family in LATE_OUTPUTS and how.build >= LATE
    later = arch.family in LATER_OUTPUTS
    for place in places:
        cut = place == len(arch.layers) - 1 and not late and not later
        x = _layer(site, arch.layers[place], x, place, rows if cut else None)
    if late:
        x = get_rows(x, rows)
    if arch.final_norm is not None:
        x = normed(site, x, arch.final_norm, -1, "output_norm")
    x.kept = how.build >= TWO_EMBEDDINGS
    if later:
        x = get_rows(x, rows)
        x.kept = True
    logits = mul_mat(_head(site), x)
    if arch.head is not None and arch.head.bias:
        bias = site.weight("output.bias", arch.vocab, place=where.output)
        logits = alike("add", logits, bias)
    logits.kept = True
    site.graph.expand(logits)
    return site.graph


def _head(site: GraphBuilder) -> GraphTensor:
    """The output's weight; a tied one is a copy of the embedding."""
    arch, where = site.arch, site.where
    name = "output.weight" if arch.head is not None else "token_embd.weight"
    return site.weight(name, arch.hidden, arch.vocab, place=where.output)


def _embedded(site: GraphBuilder) -> GraphTensor:
    """Rows of the embedding, which stays on the host."""
    arch, how, where, host = site.arch, site.how, site.where, site.where.host
    table = site.weight("token_embd.weight", arch.hidden, arch.vocab, place=host)
    x = get_rows(table, site.given("tokens", how.tokens))
    if how.build >= TWO_EMBEDDINGS:
        site.graph.expand(x)
        site.graph.expand(site.given("embeddings", arch.hidden, how.tokens, kind="F32"))
    if arch.family in EMBEDDING_SCALED:
        x = alike("scale", x)
    for weight in arch.embedding:
        if "vocab" not in dict(weight.dims):
            positions = site.weight("position_embd.weight", arch.hidden, arch.max_seq_len,
                                    place=host)  # fmt: skip
            x = alike("add", x, get_rows(positions, site.given("positions", how.tokens)))
    if arch.embedding_norm is not None:
        norm = arch.embedding_norm
        made = site.pin(alike("norm", x), 0)
        first = where.layers[0] if how.build >= FIRST_NORM else host
        made = alike("mul", made, site.weight("token_embd_norm.weight", arch.hidden, place=first))
        x = alike("add", made, site.weight("token_embd_norm.bias", arch.hidden, place=first)
                  ) if norm.bias else made  # fmt: skip
    return x


def _mixed(site: GraphBuilder, layer: Layer, x: GraphTensor, place: int) -> GraphTensor:
    mixer = layer.mixer
    if isinstance(mixer, LatentAttention):
        return latent(site, mixer, x, place)
    if isinstance(mixer, StateSpace):
        return scanned(site, mixer, x, place)
    if isinstance(mixer, Recurrence):
        site.graph.expand(x)
        return delta(site, mixer, x, place)
    assert isinstance(mixer, Attention)
    return attended(site, mixer, x, place)


def _fed(site: GraphBuilder, layer: Layer, x: GraphTensor, place: int) -> GraphTensor:
    if isinstance(layer.mlp, Moe):
        return experts(site, layer.mlp, x, place)
    assert layer.mlp is not None
    return dense(site, layer.mlp, x, place)


def _layer(
    site: GraphBuilder, layer: Layer, x: GraphTensor, place: int, rows: GraphTensor | None
) -> GraphTensor:
    """One layer; `rows` are the tokens that go on behind the last attention."""
    before = layer.norm("pre")
    if layer.mixer is None or layer.mlp is None:
        return _single(site, layer, x, place, rows)
    x_normed = normed(site, x, before, place, "attn_norm") if before else x
    second = layer.norm("pre_mlp")
    if layer.parallel and second and site.arch.family == "falcon":
        # two norms side by side: the first is the feed-forward's, the second attention's
        cur = _mixed(site, layer, normed(site, x, second, place, "attn_norm_2"), place)
        return _beside(site, layer, x, x_normed, cur, place, rows)
    cur = _mixed(site, layer, x_normed, place)
    if layer.parallel:
        return _beside(site, layer, x, None if second else x_normed, cur, place, rows)
    if rows is not None:
        cur, x = get_rows(cur, rows), get_rows(x, rows)
    after = layer.norm("post")
    if after:
        cur = normed(site, cur, after, place, "post_attention_norm")
    x = alike("add", x, cur) if site.arch.family == "jamba" else alike("add", cur, x)
    made = normed(site, x, second, place, "ffn_norm") if second else x
    made = _fed(site, layer, made, place)
    behind = layer.norm("post_mlp")
    if behind:
        made = normed(site, made, behind, place, "post_ffw_norm")
    if site.arch.family in RESIDUAL_FIRST:
        return alike("add", x, made)
    return alike("add", made, x)


def _single(
    site: GraphBuilder, layer: Layer, x: GraphTensor, place: int, rows: GraphTensor | None
) -> GraphTensor:
    """A layer that is a mixer or a feed-forward alone, or was cut out (Nemotron Ultra)."""
    if layer.mixer is None and layer.mlp is None:
        return x if rows is None else get_rows(x, rows)
    norm = layer.norm("pre") or layer.norm("pre_mlp")
    made = normed(site, x, norm, place, "attn_norm") if norm else x
    made = _fed(site, layer, made, place) if layer.mixer is None else _mixed(
        site, layer, made, place)  # fmt: skip
    if rows is not None:
        made, x = get_rows(made, rows), get_rows(x, rows)
    return alike("add", made, x)


def _beside(
    site: GraphBuilder,
    layer: Layer,
    x: GraphTensor,
    fed: GraphTensor | None,
    cur: GraphTensor,
    place: int,
    rows: GraphTensor | None,
) -> GraphTensor:
    """Attention and feed-forward side by side; `fed` is what the latter reads, if not its own."""
    if rows is not None:
        cur, x = get_rows(cur, rows), get_rows(x, rows)
        fed = get_rows(fed, rows) if fed is not None else None
    if fed is None:
        norm = layer.norm("pre_mlp")
        assert norm is not None
        fed = normed(site, x, norm, place, "ffn_norm")
    made = _fed(site, layer, fed, place)
    if site.arch.family == "phi":
        return alike("add", alike("add", cur, made), x)
    if site.arch.family == "falcon":
        return alike("add", alike("add", made, cur), x)
    return alike("add", alike("add", made, x), cur)
