"""Which TensorRT-LLM it is, which of its backends runs, and what each version has by default."""

from __future__ import annotations

import re

from ...run.run import Run

Version = tuple[int, int, int]
NEWEST, OLDEST = (1, 2, 1), (0, 8, 0)
TORCH, ENGINES = "pytorch", "tensorrt"
# Tokens of a block since which version (tensorrt_llm/plugin/plugin.py enable_paged_kv_cache, and
# llmapi/llm_args.py KvCacheConfig).
BLOCKS = (((0, 19, 0), 32), ((0, 10, 0), 64), ((0, 0, 0), 128))
# The largest batch since which version (tensorrt_llm/commands/build.py, llm_args.py).
BATCHES = (((0, 14, 0), 2048), ((0, 11, 0), 256), ((0, 0, 0), 8))
MAX_NUM_TOKENS = 8192


def parsed(text: str) -> Version | None:
    """Major, minor and patch of `1.2.1` or `1.1.0rc3`; None where it is no version."""
    found = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?", text)
    return (int(found[1]), int(found[2]), int(found[3] or 0)) if found else None


def version(run: Run) -> Version:
    """The version that is modelled for it."""
    return min(NEWEST, parsed(str(run.options["engine_version"])) or NEWEST)


def backend(run: Run) -> str:
    """`pytorch` since 1.0, TensorRT engines before, where nothing was said."""
    given = run.options.get("engine_generation")
    return str(given) if given else TORCH if version(run) >= (1, 0, 0) else ENGINES


def since(run: Run, table: tuple[tuple[Version, int], ...]) -> int:
    """The row of a table that a version has."""
    return next(value for first, value in table if version(run) >= first)


def tokens_per_block(run: Run) -> int:
    """Tokens of a block: as asked for, or the version's own."""
    return int(run.options.get("block_size") or since(run, BLOCKS))


def max_batch_size(run: Run) -> int:
    """Sequences at once."""
    return int(run.options.get("max_num_seqs") or since(run, BATCHES))


def max_seq_len(run: Run) -> int:
    """Tokens of the longest sequence."""
    return int(run.options.get("max_seq_len") or run.arch.max_seq_len)


def max_num_tokens(run: Run) -> int:
    """Tokens of one pass; an engine is not built for more than its batch can have."""
    most = int(run.options.get("max_num_batched_tokens") or MAX_NUM_TOKENS)
    return most if backend(run) == TORCH else min(most, max_batch_size(run) * max_seq_len(run))


def beams(run: Run) -> int:
    """The widest beam."""
    return int(run.options.get("max_beam_width") or 1)
