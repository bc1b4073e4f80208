"""The `vllm serve` command of a run; options at vLLM's defaults are left out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from ...run.run import Run
from .versions import v1, version

# Run file key and its flag.
VALUES = (
    ("max_seq_len", "--max-model-len"),
    ("tensor_parallel_size", "--tensor-parallel-size"),
    ("pipeline_parallel_size", "--pipeline-parallel-size"),
    ("data_parallel_size", "--data-parallel-size"),
    ("decode_context_parallel_size", "--decode-context-parallel-size"),
    ("gpu_memory_utilization", "--gpu-memory-utilization"),
    ("max_num_batched_tokens", "--max-num-batched-tokens"),
    ("max_num_seqs", "--max-num-seqs"),
    ("block_size", "--block-size"),
    ("max_lora_rank", "--max-lora-rank"),
    ("max_loras", "--max-loras"),
    ("max_cudagraph_capture_size", "--max-cudagraph-capture-size"),
    ("kv_cache_memory_bytes", "--kv-cache-memory-bytes"),
    ("cpu_offload_gb", "--cpu-offload-gb"),
    ("swap_space", "--swap-space"),
)
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
CACHES = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "int8": "int8_per_token_head",
    "int4": "int4_per_token_head",
}
# Formats that vLLM quantizes to while it loads; the others must be in the checkpoint.
ONLINE = {"fp8": "fp8", "nf4": "bitsandbytes"}


def command(run: Run, defaults: Mapping[str, Any]) -> tuple[str, ...]:
    """The words of the command; `run` must be as the user wrote it, without defaults applied."""
    flashinfer = run.options["use_flashinfer_sampler"]
    start = () if flashinfer is None else ("env", f"VLLM_USE_FLASHINFER_SAMPLER={int(flashinfer)}")
    return (*start, "vllm", "serve", "MODEL", *_flags(run, defaults))


def _flags(run: Run, defaults: Mapping[str, Any]) -> Iterator[str]:
    options = run.options
    for key, flag in VALUES:
        if options[key] is not None and options[key] != defaults[key]:
            yield from (
                flag,
                f"{options[key]:g}" if isinstance(options[key], float) else str(options[key]),
            )
    if options["dtype"] != defaults["dtype"]:
        yield from ("--dtype", DTYPES[options["dtype"]])
    if options["quantization"] in ONLINE and not run.quantized:
        yield from ("--quantization", ONLINE[options["quantization"]])
    cache = str(options["kv_cache_dtype"])
    if cache != "auto":
        yield from ("--kv-cache-dtype", CACHES.get(cache, cache))
    if run.mesh.ep > 1:
        yield "--enable-expert-parallel"
    if options["enforce_eager"]:
        yield "--enforce-eager"
    if options["max_lora_rank"] is not None:
        yield "--enable-lora"
    for key, flag in (
        ("enable_prefix_caching", "prefix-caching"),
        ("enable_chunked_prefill", "chunked-prefill"),
    ):
        if options[key] is not None:
            yield f"--enable-{flag}" if options[key] else f"--no-enable-{flag}"
    yield from _speculation(run)


def _speculation(run: Run) -> Iterator[str]:
    options = run.options
    if options["speculative_method"] is None and options["speculative_model"] is None:
        return
    model = options["speculative_model"]
    config = {
        "method": options["speculative_method"],
        "model": model if isinstance(model, str | None) else "DRAFT",
        "num_speculative_tokens": options["num_speculative_tokens"],
    }
    stated = {key: value for key, value in config.items() if value is not None}
    if v1(run) or version(run) >= (0, 8, 0):
        yield from ("--speculative-config", json.dumps(stated))
    else:
        yield from ("--speculative-model", str(stated.get("model", "[ngram]")))
