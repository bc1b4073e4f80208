"""Multi-head latent attention as a graph: one key head for all queries, values inside the keys.

llama.cpp b10586 src/models/deepseek2.cpp.
"""

from __future__ import annotations

from ...model.blocks import LatentAttention
from .attention import normed, projected, scored, shown_values, stored_rows
from .graph_inputs import GraphBuilder
from .graph_tensors import GraphTensor, alike, mul_mat, new, permute, reshape, view
from .versions import NO_VALUES, VALUES_FIRST


def latent(site: GraphBuilder, mixer: LatentAttention, x: GraphTensor, index: int) -> GraphTensor:
    """Multi-head latent attention with the up-projections absorbed: one key head, no values."""
    t, h = x.ne[1], mixer.heads
    rank, rope, nope = mixer.kv_rank, mixer.rope_dim, mixer.nope_dim
    where = site.given("positions", t)
    q = x
    if len(mixer.query) == 2 and mixer.query_norm is not None:
        q = projected(site, mixer.query[0], q, index, "attn_q_a")
        q = normed(site, q, mixer.query_norm, index, "attn_q_a_norm")
        q = projected(site, mixer.query[1], q, index, "attn_q_b")
    else:
        q = projected(site, mixer.query[0], q, index, "attn_q")
    q = reshape(q, nope + rope, h, t)
    both = projected(site, mixer.kv_a, x, index, "attn_kv_a_mqa")
    compressed = view(both, (rank, t), (both.nb[1],))
    turned = alike("rope", view(both, (rope, 1, t), (both.nb[1], both.nb[1])), where)
    compressed = normed(site, compressed, mixer.kv_norm, index, "attn_kv_a_norm")
    q_nope = view(q, (nope, h, t), (q.nb[1], q.nb[2]))
    q_rope = alike("rope", view(q, (rope, h, t), (q.nb[1], q.nb[2])), where)
    absorbing = site.layer_weight(index, "attn_k_b.weight", nope, rank, h)
    q_nope = permute(mul_mat(absorbing, permute(q_nope, 0, 2, 1, 3)), 0, 2, 1, 3)
    queries = new("concat", (rank + rope, h, t), (q_nope, q_rope))
    values = reshape(compressed, rank, 1, t)
    keys = new("concat", (rank + rope, 1, t), (values, turned))
    cur = _latent_cached(site, mixer, index, queries, keys, values)
    return projected(site, mixer.output, cur, index, "attn_output")


def _latent_cached(
    site: GraphBuilder,
    mixer: LatentAttention,
    index: int,
    queries: GraphTensor,
    keys: GraphTensor,
    values: GraphTensor,
) -> GraphTensor:
    how, expand = site.how, site.graph.expand
    rank, width, c, s = mixer.kv_rank, mixer.kv_rank + mixer.rope_dim, how.cells, how.streams
    first = (queries, values, keys) if how.build >= VALUES_FIRST else (queries, keys, values)
    for one in first:
        expand(one)
    cache_k = site.cache(index, "k", how.keys, width, c, s)
    stored_rows(site, cache_k, keys, "k_idxs")
    k = view(cache_k, (width, 1, c, s))
    if how.build >= NO_VALUES:
        v = view(k, (rank, 1, c, s), k.nb[1:])
    else:
        cache_v = site.cache(index, "v", how.values, rank, c, s)
        stored_rows(site, cache_v, values, "v_idxs", turned=not how.flash)
        v = shown_values(cache_v, how, rank, 1, c)
    up = site.layer_weight(index, "attn_v_b.weight", rank, mixer.value_dim, mixer.heads)
    return scored(site, queries, k, v, site.mask(c, "mask"), rank, absorbed=up)
