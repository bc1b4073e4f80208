"""Memory of TensorRT-LLM's PyTorch backend besides weights and cache.

It starts once with a small cache, runs `max_num_tokens` of prompts through the model, and gives the
cache a share of what was free at the peak (_util.py configure_kv_cache_capacity).

Legend: T tokens of the profile run, B sequences at most, V vocabulary. File names are those of
TensorRT-LLM 1.2.1, tensorrt_llm/_torch.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...ledger.formula import Term, added, product, total
from ...ledger.num import ceil_div
from ...ledger.source import code, measured
from ...ledger.units import MIB
from ...models.arch.blocks import Attention, LatentAttention
from ...run.run import Run
from ...run.served import ACTIVATION, GRAPHS, NON_TORCH, POOL, WEIGHTS, ServerItem, counted
from ...run.weights.layer_widths import LayerWidths, distinct_widths
from ...run.weights.rank_weights import run_format
from ...run.weights.shards import ServerShard
from ...training.generation.kv_cache import STATE, layer_cache
from .defaults import beams, max_batch_size, max_num_tokens, max_seq_len, tokens_per_block
from .versions import row_of_version
from .weights import ALIGNED, MXFP4

LAYER_CODE = code(
    "TensorRT-LLM 1.2.1 _torch/modules/gated_mlp.py and models/modeling_llama.py: "
    "names of the loop and of each forward keep their tensors"
)
MOE_CODE = code(
    "TensorRT-LLM 1.2.1 cpp kernels/cutlass_kernels/moe_gemm/moe_kernels.cu "
    "getWorkspaceDeviceBufferSizes"
)
ROTARY_CODE = code(
    "TensorRT-LLM 1.2.1 _torch/attention_backend/interface.py RopeParams: fp32, computed once"
)
WORKSPACE_CODE = code(
    "TensorRT-LLM 1.2.1 cpp/tensorrt_llm/common/attentionOp.cpp getWorkspaceSizeForContext: "
    "q by itself"
)
TABLES_CODE = code("TensorRT-LLM 1.2.1 _torch/attention_backend/trtllm.py kv_cache_block_offsets")
INPUTS_CODE = code("TensorRT-LLM 1.2.1 _torch/pyexecutor/model_engine.py __init__")
GRAPHS_CODE = code(
    "TensorRT-LLM 1.2.1 _torch/pyexecutor/cuda_graph_runner.py: one pool, largest "
    "batch first; its logits in 16 and 32 bits"
)
ALL_REDUCE_CODE = code(
    "TensorRT-LLM 1.2.1 plugin/plugin.py CustomAllReduceHelper: one for each rank, and three to "
    "take turns"
)
STATES_CODE = code(
    "TensorRT-LLM 1.2.1 _torch/pyexecutor/mamba_cache_manager.py: for max_batch_size sequences"
)
GRAPH_SIZES = (*range(1, 33), 64, 128)  # CudaGraphConfig, without padding
# Measured in one start-up on an H100 and not explained by other items: kernels, handles, graphs.
LIBRARIES_BYTES = 664 * MIB
LIBRARIES_SOURCE = measured(
    "TensorRT-LLM 1.2.1 on one H100 80GB: what is left of a start-up of Qwen3-0.6B whose log gives "
    "the pool (68.69 GiB), 1 run: kernels of TensorRT-LLM, 34 CUDA graphs, handles"
)
# Bytes of an all-reduce buffer by first version; one per rank, and three more in rotation.
SHARED_BYTES = (((1, 2, 0), 64 * MIB), ((0, 0, 0), 0))


def layer_terms(run: Run, widths: LayerWidths) -> tuple[Term, ...]:
    """Bytes a token at one layer's peak.

    Alive throughout: the layer's input, the residual, and the input of its attention or
    feed-forward; they are added in place. In attention q, k and v, and its output; in a
    feed-forward the activation's input and output, and the feed-forward's output. Experts have a
    row for each token they get, before and after each of their two products; with MXFP4 they are
    padded, and so are their input and output.
    """
    hidden, size = widths.hidden, 2 if run.precision != "fp32" else 4
    activation_size = 1 if run.options.get("quantization") == "fp8" else size
    attention = (
        ("hidden states", size * 3 * hidden),
        ("q, k and v", size * widths.mixed),
        ("attention", size * widths.read),
    )
    feed_forward = (
        ("hidden states", size * 4 * hidden),
        ("gate and up", size * widths.up),
        ("product", activation_size * widths.act),
    )
    experts: tuple[Term, ...] = ()
    if widths.experts is not None:
        moe, padded = widths.experts, run_format(run).name == MXFP4
        row = _aligned(hidden) if padded else hidden
        up, act = (2 * _aligned(moe.up // 2), _aligned(moe.act)) if padded else (moe.up, moe.act)
        rows = 4 * hidden + (2 * row if padded else 0) + (hidden if widths.up else 0)
        experts = (
            ("hidden states", size * rows),
            ("rows of experts", size * moe.top_k * (max(row, act) + max(up, row))),
            ("router", moe.top_k * 8 + moe.count * 8),  # logits, indices of the rows
        )
    return max(attention, feed_forward, experts, key=total)


def _aligned(size: int) -> int:
    return int(ceil_div(size, ALIGNED)) * ALIGNED


def _widest_layer(run: Run, shard: ServerShard) -> tuple[Term, ...]:
    """Bytes a token at the largest layer's peak."""
    layers = distinct_widths(run.arch, shard)
    return max((layer_terms(run, widths) for widths in layers), key=total, default=())


def activation_items(run: Run, shard: ServerShard) -> Iterator[ServerItem]:
    """The profile run's peak: a layer, or the logits of each prompt's last token."""
    tokens, size = max_num_tokens(run), 2 if run.precision != "fp32" else 4
    prompts = int(ceil_div(tokens, max(1, max_seq_len(run) - 1)))
    logits = product(("prompts", prompts), ("logits", run.arch.vocab), ("bytes", size + 4))
    experts = any(widths.experts for widths in distinct_widths(run.arch, shard))
    terms, name = _widest_layer(run, shard), "profiling: one layer at work"
    layer = tokens * total(terms), f"{tokens:,} tokens × {added(terms)} bytes"
    peak = logits if shard.head and logits[0] > layer[0] else layer
    source = MOE_CODE if experts else LAYER_CODE
    yield ServerItem(ACTIVATION, name, peak[0], source, peak[1])


def buffer_items(run: Run, shard: ServerShard) -> Iterator[ServerItem]:
    """Tensors allocated with the model that stay; the log counts them as loaded (inside torch)."""
    tokens, batch = max_num_tokens(run), max_batch_size(run) * beams(run)
    pages = int(ceil_div(max_seq_len(run) + 1, tokens_per_block(run)))
    read = max((widths.read for widths in distinct_widths(run.arch, shard)), default=0)
    rotary = ("positions", int(run.arch.max_seq_len)), _rotary_width(run), ("bytes", 4)
    workspace = ("tokens", tokens), ("of q", read), ("bytes", 2)
    tables = ("sequences", batch), 2, ("pages", pages), ("bytes", 4)
    inputs = f"{tokens:,} tokens × 3 × 4 bytes + {batch:,} sequences × 4 × 4 bytes"
    items = (
        counted(WEIGHTS, "rotary tables", ROTARY_CODE, *rotary),
        counted(WEIGHTS, "attention workspace", WORKSPACE_CODE, *workspace),
        counted(WEIGHTS, "block tables", TABLES_CODE, *tables),
        ServerItem(WEIGHTS, "inputs", tokens * 4 * 3 + batch * 4 * 4, INPUTS_CODE, inputs),
    )
    yield from (item for item in items if item.bytes)


def _rotary_width(run: Run) -> int:
    """Elements of cos and sin of one position."""
    mixers = [mixer for layer, _, _ in run.arch.runs for mixer in layer.mixers]
    sizes = [
        mixer.rope_dim if isinstance(mixer, LatentAttention) else mixer.rotary_dim
        for mixer in mixers
        if isinstance(mixer, Attention | LatentAttention)
    ]
    return max(sizes, default=0)


def graph_sizes(run: Run) -> tuple[int, ...]:
    """Batch sizes that are captured."""
    if run.options.get("enforce_eager"):
        return ()
    largest = int(run.options.get("cuda_graph_max_bs") or GRAPH_SIZES[-1])
    doubled: list[int] = []
    while (size := 256 << len(doubled)) < largest:
        doubled.append(size)
    sizes = sorted({size for size in (*GRAPH_SIZES, *doubled) if size <= largest} | {largest})
    return tuple(size for size in sizes if size <= max_batch_size(run))


def graph_items(run: Run, shard: ServerShard) -> Iterator[ServerItem]:
    """The memory pool that the graphs share: the largest batch's layers and logits."""
    sizes = graph_sizes(run)
    if not sizes:
        return
    drafts = int(run.options.get("num_speculative_tokens") or 0)
    tokens = max(sizes) * beams(run) * (1 + drafts)
    terms = _widest_layer(run, shard)
    size, formula = tokens * total(terms), f"{tokens:,} tokens × {added(terms)} bytes"
    if shard.head:
        size += tokens * run.arch.vocab * 6
        formula += f" + {tokens:,} × {run.arch.vocab:,} logits × 6 bytes"
    name = f"CUDA graphs: {len(sizes)} batch sizes up to {max(sizes)}"
    yield ServerItem(GRAPHS, name, size, GRAPHS_CODE, formula)


def outside_items(run: Run) -> Iterator[ServerItem]:
    """Memory outside torch besides the CUDA context: kernels, handles, all-reduce's buffers."""
    yield ServerItem(NON_TORCH, "kernels and handles", LIBRARIES_BYTES, LIBRARIES_SOURCE)
    ranks = int(run.mesh.tp)
    if ranks > 1:
        buffer_bytes = row_of_version(run, SHARED_BYTES)
        buffers = ("bytes", buffer_bytes or (16_000_000 if ranks <= 2 else 8_000_000))
        name = "buffers of all-reduce"
        yield counted(NON_TORCH, name, ALL_REDUCE_CODE, 4, ("ranks", ranks), buffers)


def state_items(run: Run, shard: ServerShard) -> Iterator[ServerItem]:
    """States of Mamba and linear attention, for max_batch_size sequences."""
    bits = 32 if run.precision == "fp32" else 16
    layers = (run.arch.layers[place] for place in shard.places)
    caches = (layer_cache(one, None, shard, lambda n: n, bits, bits) for one in layers)
    size = sum(one.state_bytes for entries in caches for one in entries if one.kind == STATE)
    if size:
        sequences = ("sequences", max_batch_size(run))
        yield counted(POOL, "states", STATES_CODE, sequences, ("bytes", size))
