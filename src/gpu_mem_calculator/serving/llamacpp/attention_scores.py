"""Attention over the cache in the compute graph: how keys and values are stored, and the scores.

llama.cpp b10586 src/llama-graph.cpp build_attn_mha; src/llama-kv-cache.cpp cpy_k, cpy_v.
"""

from __future__ import annotations

from . import graph_tensors as ggml
from .graph_inputs import GraphBuilder, GraphRun
from .graph_tensors import GraphTensor, mul_mat, permute, reshape, view
from .versions import FLASH_SPACE, SET_ROWS

HEAD_SIZES = frozenset({40, 64, 72, 80, 96, 112, 128, 256})  # of CUDA's flash attention
CACHE_KINDS = frozenset({"F32", "F16", "BF16", "Q8_0", "Q4_0"})  # in a build without ALL_QUANTS
Heads = tuple[GraphTensor, GraphTensor, GraphTensor]  # queries, keys and values by heads


def value_view(
    cache: GraphTensor, setting: GraphRun, size: int, heads: int, cells: int
) -> GraphTensor:
    """The cached values: by token for flash attention, else transposed for a matrix product."""
    if setting.flash:
        return view(cache, (size, heads, cells, setting.streams))
    row = cells * cache.nb[0]
    return view(cache, (cells, heads, size, setting.streams), (row * size, row, row * size * heads))


def store_rows(
    builder: GraphBuilder,
    cache: GraphTensor,
    x: GraphTensor,
    name: str,
    *,
    transposed: bool = False,
) -> None:
    """Write x to the cache: rows by index; into a transposed cache, elements by index."""
    setting, t = builder.setting, x.ne[2]
    width = x.ne[0] * x.ne[1]
    if setting.build < SET_ROWS:
        target = view(cache, (t, width) if transposed else (width * t,))
        rows = permute(reshape(x, width, t), 1, 0, 2, 3) if transposed else x
        builder.graph.expand(ggml.write_into(target, rows, target, op="cpy"))
        return
    if transposed:
        rows = (
            reshape(x, width, t) if x.nb[2] == width * 4 else ggml.new_op("cont", (width, t), (x,))
        )
        rows, target = reshape(rows, 1, width * t), reshape(cache, 1, cache.numel)
        idxs = builder.input_tensor(name, t * width, kind="I64")
    else:
        rows = view(x, (width, t), (x.nb[2],))
        target = reshape(cache, width, cache.ne[1] * cache.ne[2]) if setting.streams > 1 else cache
        idxs = builder.input_tensor(name, t, kind="I64")
    builder.graph.expand(ggml.write_into(target, rows, idxs, target))


def attend(
    builder: GraphBuilder,
    heads: Heads,
    mask: GraphTensor,
    value: int,
    *,
    sinks: GraphTensor | None = None,
    absorbed: GraphTensor | None = None,
) -> GraphTensor:
    """build_attn_mha: flash attention in one op, or scores, softmax and the product with values.

    `absorbed`: latent attention's value projection, applied to the result.
    """
    setting, (q, k, v) = builder.setting, heads
    d, a, t, s = *q.ne[:3], setting.streams
    q = permute(view(q, (d, a, t // s, s), (q.nb[1], q.nb[2], q.nb[2] * (t // s))), 0, 2, 1, 3)
    by_token = v.nb[1] <= v.nb[2]  # such values must be transposed for a matrix product
    k, v = permute(k, 0, 2, 1, 3), permute(v, 0, 2, 1, 3)
    extra = (sinks,) if sinks is not None else ()
    if setting.flash:
        out = ggml.new_op("flash_attn", (value, a, t // s, s), (q, k, v, mask, *extra))
        out.on_gpu = has_flash_kernel(setting.keys, setting.values, d, value, a // k.ne[2])
        out.extra = _workspace_bytes(builder, out, k, v)
        if absorbed is not None:
            out = mul_mat(absorbed, permute(out, 0, 2, 1, 3))
            out = ggml.contiguous(permute(out, 0, 2, 1, 3))
        out = reshape(out, out.ne[0] * out.ne[1], out.ne[2] * out.ne[3])
    else:
        kq = ggml.op_like("soft_max", mul_mat(k, q), mask, *extra)
        if by_token:
            flipped = permute(v, 1, 0, 2, 3)
            v = ggml.new_op("cont", flipped.ne, (flipped,), v.kind)
        kqv = mul_mat(v, kq)
        if absorbed is not None:
            kqv = mul_mat(absorbed, kqv)
        back = permute(kqv, 0, 2, 1, 3)
        out = ggml.new_op("cont", (back.ne[0] * back.ne[1], back.ne[2] * back.ne[3]), (back,))
        if not setting.offload_kqv:
            builder.graph.fixed[out] = builder.devices.host
    return builder.graph.expand(out)


def has_flash_kernel(keys: str, values: str, head: int, value: int, queries: int) -> bool:
    """Whether CUDA has a flash kernel (ggml-cuda/fattn.cu ggml_cuda_get_best_fattn_kernel).

    `head`, `value`: sizes of a key and of a value head; `queries`: query heads for each key head.
    """
    if keys != values or keys not in CACHE_KINDS:
        return False
    if head in HEAD_SIZES:
        return value == head
    large = {192: (128, 8), 320: (256, 32), 512: (512, 2), 576: (512, 2)}
    if head not in large:
        return False
    size, least = large[head]
    return value == size and queries % least == 0


def _workspace_bytes(
    builder: GraphBuilder, out: GraphTensor, k: GraphTensor, v: GraphTensor
) -> int:
    """Bytes after the result in which a cache that is not fp16 is converted to it."""
    setting = builder.setting
    if setting.build < FLASH_SPACE or setting.keys == "F16" or not out.on_gpu:
        return 0
    end = out.num_bytes
    end = -(-end // 128) * 128 + k.numel * 2
    if v.view is not k.view:
        end = -(-end // 128) * 128 + v.numel * 2
    return end - out.num_bytes
