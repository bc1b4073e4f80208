"""TensorRT-LLM: the KV cache gets a share of the memory that the model leaves free.

Names in a run file and in TensorRT-LLM: `engine_generation` is its backend, `pytorch` (the default
since 1.0) or `tensorrt` (engines that `trtllm-build` makes). `gpu_memory_utilization` is
kv_cache_config.free_gpu_memory_fraction, `max_num_seqs` max_batch_size, `max_num_batched_tokens`
max_num_tokens, `block_size` tokens_per_block, `max_total_tokens` kv_cache_config.max_tokens,
`enforce_eager` turns CUDA graphs off. Files are those of TensorRT-LLM 1.2.1.

TensorRT plans the activations when an engine is built and logs them ("execution context memory",
"Total Activation Memory"); its compiler is closed, so the widths below are read from such logs. The
C++ runtime's buffers are from its source.

Legend: T max_num_tokens, B max_batch_size, S max_seq_len, V vocabulary, h hidden, f feed-forward.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...ledger.frameworks import TENSORRT_LLM
from ...ledger.ledger import CPU
from ...ledger.source import code, measured
from ...ledger.units import GIB, MIB
from ...run.cuda.libraries import process_items
from ...run.engine import Engine
from ...run.releases import newer_version_notes
from ...run.run import Run
from ...run.served import (
    ACTIVATION,
    NON_TORCH,
    POOL,
    ServerItem,
    ServerMemory,
    left_open,
    server_options,
)
from ...run.weights.layer_widths import LayerWidths, distinct_widths
from ...run.weights.shards import ServerShard
from . import cache, torch_backend, weights
from .checks import FORMATS, SPECULATION, problems
from .command import command, settings_note
from .defaults import beams, max_batch_size, max_num_tokens, max_seq_len, tokens_per_block
from .row import ROW
from .shards import rank_shard, stage_layers
from .versions import ENGINES, NEWEST, TORCH, backend, row_of_version, version

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


POOL_CODE = code(
    "TensorRT-LLM 1.2.1 _torch/pyexecutor/_util.py _cal_max_memory, resource_manager.py "
    "calculate_max_num_blocks: a share of what is free"
)
FREE_CODE = code(
    "TensorRT-LLM 1.2.1 cpp/tensorrt_llm/batch_manager/kvCacheManager.cpp calculateFreeMemBytes: a "
    "share of what is free behind the engine"
)


HOST_CODE = code(
    "TensorRT-LLM 1.2.1 cpp/tensorrt_llm/batch_manager/kvCacheManager.cpp allocatePools: "
    "secondaryPtr, pinned by CUDA as large as its blocks are"
)


def items_without_pool(run: Run, shard: ServerShard) -> tuple[ServerItem, ...]:
    """All items of one rank but the KV cache."""
    items = (*weights.rank_items(run, shard), *process_items(run, as_measured=True))
    if backend(run) == ENGINES:
        return (*items, *context_items(run, shard), *runtime_items(run, shard))
    return (
        *items,
        *torch_backend.buffer_items(run, shard),
        *torch_backend.activation_items(run, shard),
        *torch_backend.graph_items(run, shard),
        *torch_backend.outside_items(run),
        *torch_backend.state_items(run, shard),
    )


def serve(run: Run) -> ServerMemory:
    """The memory of one rank after start-up."""
    shard = rank_shard(run)
    items = items_without_pool(run, shard)
    used_bytes = sum(item.bytes for item in items)
    share = float(run.options["gpu_memory_utilization"])
    free = run.free_bytes - used_bytes
    pool = cache.pool(run, shard, int(max(0, free) * share))
    source = POOL_CODE if backend(run) == TORCH else FREE_CODE
    pool_items = [ServerItem(POOL, "keys and values", pool.bytes, source, pool.formula)]
    if pool.cross_bytes:
        name = "keys and values of the encoder"
        formula = f"{pool.cross_bytes:,} of cross_kv_cache_fraction, in whole blocks"
        pool_items.append(ServerItem(POOL, name, pool.cross_bytes, FREE_CODE, formula))
    pool_bytes = sum(item.bytes for item in (*items, *pool_items) if item.figure == POOL)
    on_host = int(run.options["host_cache_size"] or 0)
    if on_host:
        text = f"{on_host:,} of host_cache_size"
        pool_items.append(
            ServerItem(POOL, "cache on the host", on_host, HOST_CODE, text, place=CPU)
        )
    longest = max_seq_len(run)
    longest_bytes = cache.sequence_needs(run, shard, longest)
    return ServerMemory(
        items=(*items, *pool_items),
        tokens=pool.tokens,
        token_bytes=pool.token_bytes,
        max_seq_len=longest,
        most_sequences=max_batch_size(run),
        sequence_bytes=lambda context: pool.sequence_bytes(context, pool_bytes),
        needs_bytes=used_bytes - int(-longest_bytes // share),
        problem=_problem(run, free, pool),
        command=command(run),
        notes=tuple(_notes(run, pool)),
        chosen=left_open(
            run.options,
            max_num_seqs=max_batch_size(run),
            max_num_batched_tokens=max_num_tokens(run),
            block_size=tokens_per_block(run),
        ),
    )


def _problem(run: Run, free: int, pool: cache.WindowPools) -> str:
    """Why it would not start; empty if it starts. Blocks for a part of max_seq_len are enough."""
    if free <= 0:
        return (
            f"weights + buffers + profiling need {(run.free_bytes - free) / GIB:,.1f} GiB; "
            f"{run.free_bytes / GIB:,.1f} GiB available. Use more GPUs, a smaller "
            "--max-num-batched-tokens or a smaller quantization."
        )
    if not pool.blocks or min(pool.blocks) < beams(run):
        fix = "Use more GPUs or a smaller --max-num-batched-tokens."
        return f"no memory is left for the KV cache. {fix}"
    return ""


def _notes(run: Run, pool: cache.WindowPools) -> Iterator[str]:
    yield from newer_version_notes(run, "TensorRT-LLM", NEWEST)
    tokens = pool.tokens // beams(run)
    if 0 < tokens < min(max_seq_len(run), pool.windows[-1].tokens if pool.windows else 0):
        yield f"the KV cache holds {tokens:,} tokens; TensorRT-LLM lowers max_seq_len to that"
    if any(run.arch.windows) and not run.options.get("max_attention_window"):
        yield (
            "every layer caches the whole sequence unless kv_cache_config.max_attention_window "
            "lists the model's sliding windows"
        )
    yield from settings_note(run)


OPTIONS = server_options(
    """
    engine_generation max_num_batched_tokens max_num_seqs max_total_tokens block_size
    max_attention_window cross_kv_cache_fraction host_cache_size cuda_graph_max_bs max_loras
    max_lora_rank speculative_method speculative_model num_speculative_tokens
    """,
    engine_version=TENSORRT_LLM.version,
    pipeline_parallel_size=1,
    expert_parallel_size=1,
    gpu_memory_utilization=0.9,
    enforce_eager=False,
    max_beam_width=1,
)
ENGINE = Engine(
    name="tensorrt_llm",
    title=ROW.title,
    options=OPTIONS,
    values={
        "engine_generation": (TORCH, ENGINES),
        "quantization": tuple(dict.fromkeys((*FORMATS[TORCH], *FORMATS[ENGINES]))),
        "speculative_method": SPECULATION,
    },
    axes=frozenset({"tp", "pp", "ep"}),
    problems=problems,
    ledger=lambda run: serve(run).ledger,
    serve=serve,
    stage_layers=stage_layers,
    transformers=False,
)
