"""What runs beside the pool, in the memory that `mem_fraction_static` leaves: tables, workspaces,
the activations of a prefill, and CUDA graphs.

SGLang logs none of the activations; they are walked here as srt/models/llama.py, qwen2_moe.py and
deepseek_v2.py make them. Legend: T tokens of a prefill, h hidden size, f feed-forward, k experts
of a token, b sequences of the largest graph, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...ledger.source import Source, code, measured
from ...ledger.units import MIB
from ...model.arch import Layer
from ...model.blocks import Attention, LatentAttention, Mlp, Moe, Recurrence, StateSpace
from ...step.workspaces import cublas_bytes
from . import speculative
from .options import EXTRA_CONTEXT, FLASHINFER, TRITON, TRTLLM, SglangOptions
from .versions import ONE_LOGITS_BUFFER

Named = tuple[str, int, str, Source]  # name, bytes, how they come about, who says so
TABLE = "table of requests"
REQUESTS = code("sglang 0.5.18 srt/mem_cache/memory_pool.py ReqToTokenPool: 4 bytes a token of the "
                "context for every request, and one row for padding")  # fmt: skip
WORKSPACE = code("sglang 0.5.18 srt/environ.py SGLANG_FLASHINFER_WORKSPACE_SIZE, "
                 "srt/layers/attention/*_backend.py")  # fmt: skip
CUBLAS = code("torch 2.11 aten/src/ATen/cuda/CublasHandlePool.cpp getChosenWorkspaceSize")
WALKED = code("sglang 0.5.18 srt/models, srt/layers/moe/fused_moe_triton/fused_moe.py, walked for "
              "one chunk of a prefill")  # fmt: skip
LOGITS = code("sglang 0.5.18 srt/layers/logits_processor.py _copy_logits_to_buffer (fp32), "
              "srt/layers/sampler.py: probabilities beside them")  # fmt: skip
GRAPH_BUFFERS = code("sglang 0.5.18 srt/model_executor/runner/decode_cuda_graph_runner.py, "
                     "srt/layers/attention init_cuda_graph_state")  # fmt: skip
GRAPHS_MEASURED = measured(
    '"Capture cuda graph end ... mem usage" of 12 public logs (H100, L4, 24 GB cards; 16 to 64 '
    "layers; 3 to 36 graphs), less what is derived: 40 MiB with the first, then 0.06 to 0.4 MiB a "
    "layer and graph on one GPU, 0.5 to 0.65 where ranks sum up"
)
FIRST_GRAPH, LAYER_GRAPH, LAYER_GRAPH_RANKS = 40 * MIB, MIB // 4, MIB // 2
QWEN = ("qwen2", "qwen3", "mimo")  # flashinfer_backend.py gives them more
INT_WORKSPACE = 8 * MIB  # of each of FlashInfer's wrappers, one for each decode graph
KV_SPLITS = 8  # server_args.py triton_attention_num_kv_splits


def row_bytes(how: SglangOptions) -> int:
    """One request's row of the table that says where its tokens lie."""
    drafted = speculative.ahead(how.run).tokens if speculative.method(how.run) else 0
    return (how.context + EXTRA_CONTEXT + drafted) * 4


def beside(how: SglangOptions, requests: int) -> Iterator[Named]:
    """Everything but graphs."""
    row = row_bytes(how)
    yield TABLE, (requests + 1) * row, f"({requests:,} requests + 1) × {row:,}", REQUESTS
    yield from workspaces(how)
    yield ("prefill of a chunk", activations(how), f"{how.chunk:,} tokens through the widest layer",
           WALKED)  # fmt: skip
    rows = sampled_rows(how, requests)
    yield ("logits and probabilities", 2 * rows * how.run.arch.vocab * 4,
           f"2 × {rows:,} rows × {how.run.arch.vocab:,} × 4", LOGITS)  # fmt: skip


def workspaces(how: SglangOptions) -> Iterator[Named]:
    """Scratch memory that attention and cuBLAS keep."""
    sizes = {FLASHINFER: 384 * MIB, TRTLLM: 150 * MIB if how.latent else 512 * MIB}
    own = sizes.get(how.backend, 0)
    if how.backend == FLASHINFER and how.run.arch.family in QWEN:
        own = 512 * MIB
    if own:
        yield "attention workspace", own, f"{how.backend}'s own size", WORKSPACE
    yield "cuBLAS workspace", cublas_bytes(how.run.compute_capability), "", CUBLAS


def layer_peak(how: SglangOptions, layer: Layer, tokens: int) -> int:
    """The most that one layer's forward holds at once beside its input and the residual."""
    size = 4 if how.run.precision == "fp32" else 2
    hidden, tp = how.run.arch.hidden, how.shard.attention_tp
    mixers = [0]
    for mixer in layer.mixers:
        if isinstance(mixer, Attention):
            heads = mixer.heads // tp * mixer.head_dim
            both = how.shard.kv_heads(mixer.kv_heads) * (
                mixer.head_dim + (mixer.value_dim or mixer.head_dim))  # fmt: skip
            mixers.append(heads + both + heads + hidden)  # qkv, what attention says, its projection
        elif isinstance(mixer, LatentAttention):
            mixers.append(_latent(mixer, tp) + hidden)
        elif isinstance(mixer, StateSpace):
            mixers.append(4 * mixer.inner // tp + hidden)
        elif isinstance(mixer, Recurrence):
            wide = mixer.channels + 2 * mixer.heads * mixer.value_dim
            mixers.append(2 * wide // tp + hidden)
    return tokens * size * (2 * hidden + max(*mixers, _feed_forward(how, layer)))


def _latent(mixer: LatentAttention, tp: int) -> int:
    """q, the keys and values that its latents become, and what attention says."""
    heads = mixer.heads // tp
    whole = mixer.nope_dim + mixer.rope_dim
    return heads * (2 * whole + mixer.nope_dim + 2 * mixer.value_dim) + mixer.kv_rank


def _feed_forward(how: SglangOptions, layer: Layer) -> int:
    """Elements a token: gate and up, their product, and the output.

    Experts run on k copies of a token, and on those of every rank that has attention of its own;
    the first product's buffer serves the last one, too (fused_moe.py intermediate_cache13).
    """
    hidden, mlp = how.run.arch.hidden, layer.mlp
    if isinstance(mlp, Mlp):
        ffn = mlp.ffn // how.shard.tp
        return (3 if mlp.gated else 2) * ffn + hidden
    if isinstance(mlp, Moe):
        ffn = mlp.ffn // how.shard.expert_tp
        copies = min(mlp.top_k, mlp.num_experts) * how.attention_dp
        wide = copies * (max(2 * ffn if mlp.gated else ffn, hidden) + ffn) + hidden
        beside = 3 * mlp.shared.ffn // how.shard.tp + hidden if mlp.shared is not None else 0
        return max(wide + (hidden if beside else 0), beside) + 2 * mlp.num_experts
    return 0


def activations(how: SglangOptions) -> int:
    """The peak of a prefill: the layer that needs most, with its input and the residual."""
    layers = {id(layer): layer for layer in how.shard.layers(how.run.arch)}.values()
    return max((layer_peak(how, layer, how.chunk) for layer in layers), default=0)


def sampled_rows(how: SglangOptions, requests: int) -> int:
    """Rows of logits of the largest batch; SGLang gathers the vocabulary."""
    rows = min(requests, how.largest_graph) * speculative.ahead(how.run).tokens
    return rows if how.shard.head else 0


def graph_parts(how: SglangOptions, requests: int) -> Iterator[Named]:
    """What decode and prefill graphs hold."""
    sizes = how.decode_sizes(requests)
    layers = len(how.shard.places)
    each = layers * (LAYER_GRAPH_RANKS if how.tp > 1 else LAYER_GRAPH)
    if sizes:
        yield from _graph_buffers(how, sizes)
    if sizes or how.prefill_sizes:
        count = len(sizes) + len(how.prefill_sizes)
        said = f"{FIRST_GRAPH:,} + {len(sizes)} of decode and {len(how.prefill_sizes)} of prefill"
        yield "CUDA graphs", FIRST_GRAPH + count * each, f"{said} × {each:,}", GRAPHS_MEASURED


def _graph_buffers(how: SglangOptions, sizes: tuple[int, ...]) -> Iterator[Named]:
    """Logits of each graph until 0.4.9, then of the largest; where the tokens of its sequences
    lie; FlashInfer's wrappers.
    """
    rows = speculative.ahead(how.run).tokens
    logits = rows * (max(sizes) if how.version >= ONE_LOGITS_BUFFER else sum(sizes))
    if how.shard.head:
        yield ("their logits", logits * how.run.arch.vocab * 4,
               f"{logits:,} rows × {how.run.arch.vocab:,} × 4", GRAPH_BUFFERS)  # fmt: skip
    pages = -(-how.context // (how.page if how.backend != FLASHINFER else 1))
    yield ("their page tables", max(sizes) * pages * 4,
           f"{max(sizes):,} sequences × {pages:,} pages × 4", GRAPH_BUFFERS)  # fmt: skip
    if how.backend == FLASHINFER:
        yield ("FlashInfer's wrappers", len(sizes) * INT_WORKSPACE,
               f"{len(sizes)} × {INT_WORKSPACE:,}", GRAPH_BUFFERS)  # fmt: skip
    elif how.backend == TRITON:
        heads = max((m.heads // how.shard.attention_tp * (m.value_dim or m.head_dim)
                     for layer in how.shard.layers(how.run.arch) for m in layer.mixers
                     if isinstance(m, Attention)), default=0)  # fmt: skip
        latents = max((m.heads // how.shard.attention_tp * m.kv_rank
                       for layer in how.shard.layers(how.run.arch) for m in layer.mixers
                       if isinstance(m, LatentAttention)), default=0)  # fmt: skip
        partial = max(sizes) * rows * KV_SPLITS * max(heads, latents) * 4
        yield "partial sums of Triton's attention", partial, "", GRAPH_BUFFERS
