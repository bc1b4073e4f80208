"""The options of a run file for transformers, and their defaults."""

from __future__ import annotations

from ...ledger.frameworks import TRANSFORMERS
from ...run.served import server_options

OPTIONS = server_options(
    "attention top_k top_p speculative_model num_speculative_tokens",
    engine_version=TRANSFORMERS.version,
    batch_size=1,
    prompt_len=1024,
    new_tokens=8,
    pipeline_parallel_size=1,
    cache_implementation="dynamic",
    num_beams=1,
    num_return_sequences=1,
    do_sample=False,
)
