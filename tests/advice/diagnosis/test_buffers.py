"""Which of llama.cpp's buffers failed, and whether the server died of it."""

from __future__ import annotations

import pytest

from gpu_mem_calculator.advice.diagnosis.diagnose import diagnose

REFUSED = (
    "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 9866.00 MiB on device 1: "
    "cudaMalloc failed: out of memory\n"
)
SIZE = "ggml_gallocr_reserve_n: failed to allocate CUDA1 buffer of size 10345253120\n"
UPDATE = "llama_kv_cache_update_impl: failed to allocate compute buffers\n"
CACHE = "llama_kv_cache_init: failed to allocate buffer for kv cache\n"
COPIES = "llama_new_context_with_model: pipeline parallelism enabled (n_copies=4)\n"
RETRY = "sched_reserve: compute buffer allocation failed, retrying without pipeline parallelism\n"


@pytest.mark.parametrize(
    ("text", "cause", "phase"),
    [
        (UPDATE + REFUSED + SIZE, "compute_buffer", "serving"),
        (REFUSED + SIZE, "compute_buffer", "start-up"),
        (REFUSED + CACHE, "cache_buffer", "start-up"),
        (COPIES + REFUSED + SIZE, "pipeline_copies", "start-up"),
        (REFUSED + SIZE + RETRY, "pipeline_retried", ""),
        (REFUSED + SIZE + RETRY + REFUSED + SIZE, "compute_buffer", "start-up"),
    ],
)
def test_a_buffer_that_failed(text: str, cause: str, phase: str) -> None:
    """A function's name does not say what failed; what then went on is no death."""
    found = diagnose(text).cause
    assert found is not None
    assert (found.id, found.phase) == (cause, phase)
    assert found.sentence.count("9.63 GiB") == 1
