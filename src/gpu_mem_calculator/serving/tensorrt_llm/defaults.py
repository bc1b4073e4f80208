"""Sizes of a TensorRT-LLM server: as the run file says, or the version's defaults."""

from __future__ import annotations

from ...run.run import Run
from .versions import TORCH, backend, row_of_version

# Tokens of a block by first version (tensorrt_llm/plugin/plugin.py enable_paged_kv_cache, and
# llmapi/llm_args.py KvCacheConfig).
BLOCKS = (((0, 19, 0), 32), ((0, 10, 0), 64), ((0, 0, 0), 128))
# The largest batch by first version (tensorrt_llm/commands/build.py, llm_args.py).
BATCHES = (((0, 14, 0), 2048), ((0, 11, 0), 256), ((0, 0, 0), 8))
MAX_NUM_TOKENS = 8192


def tokens_per_block(run: Run) -> int:
    """Tokens of a cache block."""
    return int(run.options.get("block_size") or row_of_version(run, BLOCKS))


def max_batch_size(run: Run) -> int:
    """Most sequences of a step."""
    return int(run.options.get("max_num_seqs") or row_of_version(run, BATCHES))


def max_seq_len(run: Run) -> int:
    """Tokens of the longest sequence."""
    return int(run.options.get("max_seq_len") or run.arch.max_seq_len)


def max_num_tokens(run: Run) -> int:
    """Tokens of one pass; an engine is built for at most what its batch can have."""
    tokens = int(run.options.get("max_num_batched_tokens") or MAX_NUM_TOKENS)
    return tokens if backend(run) == TORCH else min(tokens, max_batch_size(run) * max_seq_len(run))


def beams(run: Run) -> int:
    """The largest beam width."""
    return int(run.options.get("max_beam_width") or 1)
