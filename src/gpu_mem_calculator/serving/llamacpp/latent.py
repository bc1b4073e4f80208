"""Multi-head latent attention in the compute graph: one key head, values are part of the keys.

llama.cpp b10586 src/models/deepseek2.cpp.
"""

from __future__ import annotations

from ...models.arch.blocks import LatentAttention
from .attention import apply_norm, project
from .attention_scores import Heads, attend, store_rows, value_view
from .graph_inputs import GraphBuilder
from .graph_tensors import GraphTensor, mul_mat, new_op, op_like, permute, reshape, view
from .versions import NO_VALUES, VALUES_FIRST


def latent_attention(builder: GraphBuilder, mixer: LatentAttention, x: GraphTensor) -> GraphTensor:
    """Multi-head latent attention with the up-projections absorbed: one key head, no values."""
    t, h = x.ne[1], mixer.heads
    rank, rope, nope = mixer.kv_rank, mixer.rope_dim, mixer.nope_dim
    positions = builder.input_tensor("positions", t)
    q = x
    if len(mixer.query) == 2 and mixer.query_norm is not None:
        q = project(builder, mixer.query[0], q, "attn_q_a")
        q = apply_norm(builder, q, mixer.query_norm, "attn_q_a_norm")
        q = project(builder, mixer.query[1], q, "attn_q_b")
    else:
        q = project(builder, mixer.query[0], q, "attn_q")
    q = reshape(q, nope + rope, h, t)
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
