"""Memory of TensorRT engines besides weights and cache.

TensorRT plans the activations when an engine is built and logs them ("execution context memory",
"Total Activation Memory"); its compiler is closed, so the widths below are read from such logs. The
C++ runtime's buffers are from its source.

Legend: T max_num_tokens, B max_batch_size, S max_seq_len, V vocabulary, h hidden, f feed-forward.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...ledger.source import code, measured
from ...ledger.units import MIB
from ...run.run import Run
from ...run.served import ACTIVATION, NON_TORCH, ServerItem
from ...run.weights.layer_widths import LayerWidths, distinct_widths
from ...run.weights.shards import ServerShard
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
# Arrays of B x S integers besides the decoder's, by first version: ids, log probabilities and
# cache indirections.
LISTS = (((1, 0, 0), 3), ((0, 17, 0), 5), ((0, 0, 0), 6))
SCALED_INPUTS = ("awq", "gptq_int4", "int4", "nvfp4")  # formats whose inputs are scaled into copies


def token_bytes(run: Run, widths: LayerWidths) -> int:
    """Bytes of one token in a layer.

    Gate and up (or the activation's input and output) are alive with the residual and the input.
    """
    size, quantization = 4 if run.precision == "fp32" else 2, run.options.get("quantization")
    rows = 5 if quantization in SCALED_INPUTS else 2
    activation_size = 1 if quantization == "fp8" else size
    after_activation = 0 if widths.up > widths.act else activation_size * widths.act
    feed_forward = size * (widths.up + rows * widths.hidden) + after_activation
    if widths.experts is not None:
        feed_forward += size * widths.experts.top_k * (widths.experts.up + widths.hidden)
    return max(feed_forward, size * (2 * widths.hidden + widths.mixed + widths.read))


def context_items(run: Run, shard: ServerShard) -> Iterator[ServerItem]:
    """The execution context: the layers of the largest pass, and one more block.

    That block is for the GEMM workspace besides gate and up, or for the logits.
    """
    tokens, batch = max_num_tokens(run), max_batch_size(run) * beams(run)
    layer_widths = distinct_widths(run.arch, shard)
    token_size = max((token_bytes(run, widths) for widths in layer_widths), default=0)
    size = 4 if run.precision == "fp32" else 2
    logits = batch * shard.vocab(run.arch.vocab) * size if shard.head else 0
    block = tokens * size * max((widths.act for widths in layer_widths), default=0)
    gated = any(widths.up > widths.act or widths.experts for widths in layer_widths)
    extra = max(GEMM_BYTES if gated else 0, logits if logits > block else 0)
    formula = f"{tokens:,} tokens × {token_size:,} bytes + {extra:,}"
    total = tokens * token_size + extra
    yield ServerItem(ACTIVATION, "execution context", total, CONTEXT_SOURCE, formula)


def runtime_items(run: Run, shard: ServerShard) -> Iterator[ServerItem]:
    """Buffers of the runtime and of its decoder, for B sequences.

    Logits, ids, log probabilities, biases, penalties (twice with beams), the workspace of sampling.
    """
    batch, beam_width = max_batch_size(run), beams(run)
    sequence_list, vocab = batch * beam_width * max_seq_len(run) * 4, batch * run.arch.vocab * 4
    logits = vocab * beam_width if shard.head else 0
    buffers = logits + row_of_version(run, LISTS) * sequence_list
    lists = f"{row_of_version(run, LISTS)} lists × {sequence_list:,} bytes"
    formula = f"{logits:,} of logits + {lists}"
    yield ServerItem(NON_TORCH, "runtime buffers", buffers, BUFFERS_SOURCE, formula)
    if not shard.head:
        return
    id_lists = sequence_list * (4 if beam_width == 1 else 8)
    penalties = 2 * vocab * beam_width * (1 if beam_width == 1 else 2)
    sampling = vocab * (1 if version(run) >= (0, 14, 0) else 2) + batch * TOP_K * TOP_K_BLOCKS * 8
    total = id_lists + vocab + penalties + sampling
    lists = f"{id_lists:,} of token ids + {vocab:,} of biases"
    formula = f"{lists} + {penalties:,} of penalties + {sampling:,} of sampling"
    yield ServerItem(NON_TORCH, "decoder", total, DECODER_SOURCE, formula)
