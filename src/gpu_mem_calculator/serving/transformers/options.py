"""The options of a run file for transformers, and their defaults."""

from __future__ import annotations

from typing import Any

from ...published.frameworks import TRANSFORMERS

OPTIONS: dict[str, Any] = {
    "engine_version": TRANSFORMERS.version,
    "batch_size": 1,
    "prompt_len": 1024,
    "new_tokens": 8,
    "max_seq_len": None,
    "dtype": "bf16",
    "attention": None,
    "quantization": "none",
    "kv_cache_dtype": "auto",
    "tensor_parallel_size": 1,
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
