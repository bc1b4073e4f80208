"""What TensorRT engines hold beside their weights and cache.

TensorRT plans the activations when an engine is built and logs them ("execution context memory",
"Total Activation Memory"); its compiler is closed, so the widths below are read from such logs. The
C++ runtime's buffers are from its source.

Legend: T max_num_tokens, B max_batch_size, S max_seq_len, V vocabulary, h hidden, f feed-forward.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...ledger.source import Source, code, measured
from ...ledger.units import MIB
from ...run.run import Run
from ...run.served import ACTIVATION, NON_TORCH, ServerItem
from ...weights.layer_widths import LayerWidths, distinct_widths
from ...weights.shards import ServerShard
from .defaults import beams, max_batch_size, max_num_tokens, max_seq_len
from .versions import row_of_version, version

GEMM_BYTES = 32 * MIB  # workspace of the GEMM plugin
TOP_K, TOP_K_BLOCKS = 1024, 8  # kernels/samplingTopKKernels.h
CONTEXT_SOURCE = measured(
    "TensorRT-LLM's logs of engines with GEMM plugins: GPT-2 (two sizes, 0.20) and Qwen2.5-0.5B in "
    "int8 (two sizes, 0.14) within 0.1 %, GPT-J in FP8 (0.12) 3 %; 5h for 2h with AWQ (Qwen2.5-7B, "
    "two sizes, 1.2.1) within 0.5 %"
)
DECODER_SOURCE = code(
    "TensorRT-LLM 1.2.1 cpp/tensorrt_llm/runtime/decoderState.cpp reshapeBuffers, "
    "layers/penaltyLayer.cpp, kernels/samplingTopKKernels.h; a log of 0.14 has the same sum"
)
BUFFERS_SOURCE = code(
    "TensorRT-LLM 1.2.1 cpp/tensorrt_llm/batch_manager/runtimeBuffers.cpp, transformerBuffers.cpp "
    "and decoderBuffers.cpp; logs of 0.12 to 0.14 have the same sum (4 engines, within 1 %)"
)
# Lists of B x S whole numbers beside the decoder's since which version: ids, log probabilities and
# cache indirections.
LISTS = (((1, 0, 0), 3), ((0, 17, 0), 5), ((0, 0, 0), 6))
SCALED_INPUTS = ("awq", "gptq_int4", "int4", "nvfp4")  # inputs are scaled in copies


def token_bytes(run: Run, wide: LayerWidths) -> int:
    """One token of a layer: gate and up (or what is before and behind an activation) are alive
    together with the residual and the input.
    """
    size, named = 4 if run.precision == "fp32" else 2, run.options.get("quantization")
    rows, narrow = 5 if named in SCALED_INPUTS else 2, 1 if named == "fp8" else size
    behind = 0 if wide.up > wide.act else narrow * wide.act
    feed = size * (wide.up + rows * wide.hidden) + behind
    if wide.experts is not None:
        feed += size * wide.experts.top_k * (wide.experts.up + wide.hidden)
    return max(feed, size * (2 * wide.hidden + wide.mixed + wide.read))


def context_items(run: Run, shard: ServerShard) -> Iterator[ServerItem]:
    """The execution context: the layers of the largest pass, and a block for what fits in none of
    theirs, the GEMM workspace beside gate and up or the logits.
    """
    tokens, batch = max_num_tokens(run), max_batch_size(run) * beams(run)
    found = distinct_widths(run.arch, shard)
    each = max((token_bytes(run, wide) for wide in found), default=0)
    size = 4 if run.precision == "fp32" else 2
    logits = batch * shard.vocab(run.arch.vocab) * size if shard.head else 0
    block = tokens * size * max((wide.act for wide in found), default=0)
    gated = any(wide.up > wide.act or wide.experts for wide in found)
    more = max(GEMM_BYTES if gated else 0, logits if logits > block else 0)
    yield ServerItem(
        figure=ACTIVATION,
        name="execution context",
        bytes=tokens * each + more,
        source=CONTEXT_SOURCE,
        formula=f"{tokens:,} tokens x {each:,} bytes + {more:,}",
    )


def runtime_items(run: Run, shard: ServerShard) -> Iterator[ServerItem]:
    """Buffers of the runtime and of its decoder, for B sequences: logits, ids, log probabilities,
    biases, penalties (twice with beams), the workspace of sampling.
    """
    batch, wide = max_batch_size(run), beams(run)
    length, vocab = batch * wide * max_seq_len(run) * 4, batch * run.arch.vocab * 4
    logits = vocab * wide if shard.head else 0
    yield _item("runtime buffers", logits + row_of_version(run, LISTS) * length, BUFFERS_SOURCE)
    if not shard.head:
        return
    lists = length * (4 if wide == 1 else 8)
    penalties = 2 * vocab * wide * (1 if wide == 1 else 2)
    sampling = vocab * (1 if version(run) >= (0, 14, 0) else 2) + batch * TOP_K * TOP_K_BLOCKS * 8
    yield _item("decoder", lists + vocab + penalties + sampling, DECODER_SOURCE)


def _item(name: str, size: int, source: Source) -> ServerItem:
    return ServerItem(figure=NON_TORCH, name=name, bytes=size, source=source)
