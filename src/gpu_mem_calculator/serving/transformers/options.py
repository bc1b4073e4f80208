"""The options of a run file for transformers, and their defaults."""

from __future__ import annotations

from ...ledger.frameworks import TRANSFORMERS
from ...run.served import COMMON_OPTIONS

OPTIONS = COMMON_OPTIONS | {
    "engine_version": TRANSFORMERS.version,
    "batch_size": 1,
    "prompt_len": 1024,
    "new_tokens": 8,
    "attention": None,
    "pipeline_parallel_size": 1,
    "cache_implementation": "dynamic",
    "num_beams": 1,
    "num_return_sequences": 1,
    "do_sample": False,
    "top_k": None,
    "top_p": None,
    "speculative_model": None,
    "num_speculative_tokens": None,
}
