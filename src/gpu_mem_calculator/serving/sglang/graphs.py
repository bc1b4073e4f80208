"""Memory that CUDA graphs of decode and prefill take.

Legend: b sequences of the largest graph, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...ledger.formula import product
from ...ledger.source import code, measured
from ...ledger.units import MIB
from ...run.weights.layer_widths import widest_attention
from . import speculative
from .activations import Named
from .options import FLASHINFER, TRITON, SglangOptions
from .versions import ONE_LOGITS_BUFFER

GRAPH_BUFFERS = code(
    "sglang 0.5.23 srt/model_executor/runner/decode_cuda_graph_runner.py, "
    "srt/layers/attention init_cuda_graph_state"
)
GRAPHS_MEASURED = measured(
    '"Capture cuda graph end ... mem usage" of 12 public logs (H100, L4, 24 GB cards; 16 to 64 '
    "layers; 3 to 36 graphs), less what is derived: 40 MiB with the first, then 0.06 to 0.4 MiB a "
    "layer and graph on one GPU, 0.5 to 0.65 where ranks sum up"
)
FIRST_GRAPH, LAYER_GRAPH, LAYER_GRAPH_RANKS = 40 * MIB, MIB // 4, MIB // 2
INT_WORKSPACE = 8 * MIB  # of each FlashInfer wrapper; each decode graph has one
KV_SPLITS = 8  # server_args.py triton_attention_num_kv_splits


def graph_items(setting: SglangOptions, requests: int) -> Iterator[Named]:
    """Bytes of the captured decode and prefill graphs, and of the buffers they use."""
    sizes = setting.decode_sizes(requests)
    layers = len(setting.shard.places)
    each = layers * (LAYER_GRAPH_RANKS if setting.tp > 1 else LAYER_GRAPH)
    if sizes:
        yield from _graph_buffers(setting, sizes)
    if sizes or setting.prefill_sizes:
        decode, prefill = len(sizes), len(setting.prefill_sizes)
        formula = f"{FIRST_GRAPH:,} + ({decode} of decode + {prefill} of prefill) × {each:,} bytes"
        yield "CUDA graphs", FIRST_GRAPH + (decode + prefill) * each, formula, GRAPHS_MEASURED


def _graph_buffers(setting: SglangOptions, sizes: tuple[int, ...]) -> Iterator[Named]:
    """Buffers of the decode graphs, which are captured for batches of `sizes` sequences.

    - logits: of every graph until 0.4.9, then of the largest only
    - page tables of the largest batch
    - FlashInfer's wrappers, or the partial sums of Triton's attention
    """
    rows = speculative.draft_depth(setting.run).tokens
    logits = rows * (max(sizes) if setting.version >= ONE_LOGITS_BUFFER else sum(sizes))
    each = ("bytes", 4)
    if setting.shard.head:
        vocab = ("logits", setting.run.arch.vocab)
        yield "their logits", *product(("rows", logits), vocab, each), GRAPH_BUFFERS
    pages = -(-setting.context // (setting.page if setting.backend != FLASHINFER else 1))
    tables = ("sequences", max(sizes)), ("pages", pages)
    yield "their page tables", *product(*tables, each), GRAPH_BUFFERS
    if setting.backend == FLASHINFER:
        wrappers = ("graphs", len(sizes)), ("bytes", INT_WORKSPACE)
        yield "FlashInfer's wrappers", *product(*wrappers), GRAPH_BUFFERS
    elif setting.backend == TRITON:
        splits = ("tokens", max(sizes) * rows), ("splits", KV_SPLITS)
        width = ("of all heads", widest_attention(setting.run.arch, setting.shard))
        sums = product(*splits, width, each)
        yield "partial sums of Triton's attention", *sums, GRAPH_BUFFERS
