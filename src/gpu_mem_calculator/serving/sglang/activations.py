"""What a server allocates besides weights, pool and graphs, in the memory that
`mem_fraction_static` leaves: tables, workspaces, the activations of a prefill.

SGLang logs none of the activations; they are derived here from srt/models/llama.py, qwen2_moe.py
and deepseek_v2.py. Legend: T tokens of a prefill, h hidden size, f feed-forward, k experts of a
token, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...ledger.formula import Term, product, total
from ...ledger.source import Source, code
from ...ledger.units import MIB
from ...models.arch.arch import Layer
from ...models.arch.blocks import Attention, LatentAttention, Mlp, Moe, Recurrence, StateSpace
from ...run.cuda.chips import cublas_bytes
from . import speculative
from .options import EXTRA_CONTEXT, FLASHINFER, TRTLLM, SglangOptions

Named = tuple[str, int, str, Source]  # name, bytes, formula, source
TABLE = "table of requests"
REQUESTS = code(
    "sglang 0.5.23 srt/mem_cache/memory_pool.py ReqToTokenPool: 4 bytes a token of the "
    "context for every request, and one row for padding"
)
WORKSPACE = code(
    "sglang 0.5.23 srt/environ.py SGLANG_FLASHINFER_WORKSPACE_SIZE, "
    "srt/layers/attention/*_backend.py"
)
CUBLAS = code("torch 2.11 aten/src/ATen/cuda/CublasHandlePool.cpp getChosenWorkspaceSize")
WALKED = code(
    "sglang 0.5.23 srt/models, srt/layers/moe/fused_moe_triton/fused_moe.py, walked for "
    "one chunk of a prefill"
)
LOGITS = code(
    "sglang 0.5.23 srt/layers/logits_processor.py _copy_logits_to_buffer (fp32), "
    "srt/layers/sampler.py: probabilities beside them"
)
QWEN = ("qwen2", "qwen3", "mimo")  # flashinfer_backend.py: a larger workspace for them


def row_bytes(setting: SglangOptions) -> int:
    """Bytes of one request's row in the table that maps its tokens to slots of the pool."""
    run = setting.run
    draft = speculative.draft_depth(run).tokens if speculative.method(run) else 0
    return (setting.context + EXTRA_CONTEXT + draft) * 4


def activation_items(setting: SglangOptions, requests: int) -> Iterator[Named]:
    """The table of requests, workspaces, activations and logits of a server of `requests`."""
    row = row_bytes(setting)
    text = f"({requests:,} requests + 1) × {row // 4:,} tokens × 4 bytes"
    yield TABLE, (requests + 1) * row, text, REQUESTS
    yield from workspaces(setting)
    step = ("tokens", setting.chunk), list(prefill_terms(setting))
    size = ("bytes", 4 if setting.run.precision == "fp32" else 2)
    yield "prefill of a chunk", *product(*step, size), WALKED
    logits = ("rows", sampled_rows(setting, requests)), ("logits", setting.run.arch.vocab)
    yield "logits and probabilities", *product(2, *logits, ("bytes", 4)), LOGITS


def workspaces(setting: SglangOptions) -> Iterator[Named]:
    """Workspaces of the attention kernels and of cuBLAS, which are never freed."""
    sizes = {FLASHINFER: 384 * MIB, TRTLLM: 150 * MIB if setting.latent else 512 * MIB}
    size = sizes.get(setting.backend, 0)
    if setting.backend == FLASHINFER and setting.run.arch.family in QWEN:
        size = 512 * MIB
    if size:
        pages = (f"MiB of {setting.backend}", size // MIB)
        yield "attention workspace", *product(pages, MIB), WORKSPACE
    yield "cuBLAS workspace", cublas_bytes(setting.run.compute_capability), "", CUBLAS


def layer_terms(setting: SglangOptions, layer: Layer) -> tuple[Term, ...]:
    """Elements a token at the peak of one layer's forward, with its input and the residual."""
    hidden, tp = setting.run.arch.hidden, setting.shard.attention_tp
    mixers = [0]
    for mixer in layer.mixers:
        if isinstance(mixer, Attention):
            heads, value = mixer.heads // tp * mixer.head_dim, mixer.value_dim or mixer.head_dim
            both = setting.shard.kv_heads(mixer.kv_heads) * (mixer.head_dim + value)
            mixers.append(heads + both + heads + hidden)  # qkv, attention's output, its projection
        elif isinstance(mixer, LatentAttention):
            mixers.append(_latent(mixer, tp) + hidden)
        elif isinstance(mixer, StateSpace):
            mixers.append(4 * mixer.inner // tp + hidden)
        elif isinstance(mixer, Recurrence):
            width = mixer.channels + 2 * mixer.heads * mixer.value_dim
            mixers.append(2 * width // tp + hidden)
    attention, feed_forward = max(mixers), _feed_forward(setting, layer)
    peak = max(("feed-forward", feed_forward), ("attention", attention), key=lambda one: one[1])
    return (("input", hidden), ("residual", hidden), peak)


def _latent(mixer: LatentAttention, tp: int) -> int:
    """Elements a token: q, the keys and values computed from the latents, attention's output."""
    heads = mixer.heads // tp
    key_dim = mixer.nope_dim + mixer.rope_dim
    return heads * (2 * key_dim + mixer.nope_dim + 2 * mixer.value_dim) + mixer.kv_rank


def _feed_forward(setting: SglangOptions, layer: Layer) -> int:
    """Elements a token: gate and up, their product, and the output.

    Experts run on k copies of a token, for the tokens of every attention group; the buffer of the
    first product is reused for the last (fused_moe.py intermediate_cache13).
    """
    hidden, mlp = setting.run.arch.hidden, layer.mlp
    if isinstance(mlp, Mlp):
        ffn = mlp.ffn // setting.shard.tp
        return (3 if mlp.gated else 2) * ffn + hidden
    if isinstance(mlp, Moe):
        ffn = mlp.ffn // setting.shard.expert_tp
        copies = min(mlp.top_k, mlp.num_experts) * setting.attention_dp
        routed = copies * (max(2 * ffn if mlp.gated else ffn, hidden) + ffn) + hidden
        shared = 3 * mlp.shared.ffn // setting.shard.tp + hidden if mlp.shared is not None else 0
        return max(routed + (hidden if shared else 0), shared) + 2 * mlp.num_experts
    return 0


def prefill_terms(setting: SglangOptions) -> tuple[Term, ...]:
    """Elements a token at the peak of a prefill pass: those of the layer that needs most."""
    layers = {id(layer): layer for layer in setting.shard.layers(setting.run.arch)}.values()
    return max((layer_terms(setting, layer) for layer in layers), key=total, default=())


def sampled_rows(setting: SglangOptions, requests: int) -> int:
    """Rows of logits of the largest batch; each rank has all of the vocabulary."""
    rows = min(requests, setting.largest_graph) * speculative.draft_depth(setting.run).tokens
    return rows if setting.shard.head else 0
