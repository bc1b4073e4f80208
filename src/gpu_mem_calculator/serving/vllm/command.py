"""The `vllm serve` command of a run; options at vLLM's defaults are left out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from ...run.run import Run
from ...run.served import checkpoint_word
from .versions import v1, version

# Keys of a run file whose flag has the same words.
VALUES = """
    max_seq_len tensor_parallel_size pipeline_parallel_size data_parallel_size
    decode_context_parallel_size gpu_memory_utilization max_num_batched_tokens max_num_seqs
    block_size max_lora_rank max_loras max_cudagraph_capture_size kv_cache_memory_bytes
    cpu_offload_gb swap_space kv_offloading_size
"""
NAMES = {"max_seq_len": "max_model_len"}  # where vLLM has another word
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
CACHES = {"bf16": "bfloat16", "fp16": "float16"}
# Formats that vLLM quantizes to while it loads; the others must be in the checkpoint.
ONLINE = {"fp8": "fp8", "nf4": "bitsandbytes"}


def command(run: Run, defaults: Mapping[str, Any]) -> tuple[str, ...]:
    """The words of the command; `run` must be as the user wrote it, without defaults applied."""
    flashinfer = run.options["use_flashinfer_sampler"]
    start = [] if flashinfer is None else [f"VLLM_USE_FLASHINFER_SAMPLER={int(flashinfer)}"]
    size = run.options["lmcache_size"]
    start += [f"LMCACHE_MAX_LOCAL_CPU_SIZE={size:g}"] if size else []
    first = ["env", *start] if start else []
    return (*first, "vllm", "serve", checkpoint_word(run, ONLINE), *_flags(run, defaults))


def _flags(run: Run, defaults: Mapping[str, Any]) -> Iterator[str]:
    options = run.options
    for key in VALUES.split():
        value = options[key]
        if value is not None and value != defaults[key]:
            yield f"--{NAMES.get(key, key).replace('_', '-')}"
            yield f"{value:g}" if isinstance(value, float) else str(value)
    if options["dtype"] != defaults["dtype"]:
        yield from ("--dtype", DTYPES[options["dtype"]])
    if options["quantization"] in ONLINE and not run.quantized:
        yield from ("--quantization", ONLINE[options["quantization"]])
    cache = str(options["kv_cache_dtype"])
    if cache != "auto":
        scaled = cache in ("int8", "int4")
        name = f"{cache}_per_token_head" if scaled else CACHES.get(cache, cache)
        yield from ("--kv-cache-dtype", name)
    if run.mesh.ep > 1:
        yield "--enable-expert-parallel"
    if options["enforce_eager"]:
        yield "--enforce-eager"
    if options["enable_sleep_mode"]:
        yield "--enable-sleep-mode"
    if options["lmcache_size"]:
        connector = {"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}
        yield from ("--kv-transfer-config", json.dumps(connector))
    if options["max_lora_rank"] is not None:
        yield "--enable-lora"
    for key in ("enable_prefix_caching", "enable_chunked_prefill"):
        if options[key] is not None:
            yield f"--{'' if options[key] else 'no-'}{key.replace('_', '-')}"
    yield from _images(options)
    yield from _graphs(options)
    yield from _speculation(run)


def _images(options: Mapping[str, Any]) -> Iterator[str]:
    if options["language_model_only"]:
        yield "--language-model-only"
    if options["mm_encoder_tp_mode"] != "weights":
        yield from ("--mm-encoder-tp-mode", options["mm_encoder_tp_mode"])
    if options["limit_mm_per_prompt"]:
        yield from ("--limit-mm-per-prompt", json.dumps(options["limit_mm_per_prompt"]))


def _graphs(options: Mapping[str, Any]) -> Iterator[str]:
    mode, sizes = options["cudagraph_mode"], options["cudagraph_capture_sizes"]
    config: dict[str, Any] = {"cudagraph_mode": mode.upper()} if mode else {}
    config |= {"cudagraph_capture_sizes": list(sizes)} if sizes else {}
    if config:
        yield from ("--compilation-config", json.dumps(config))


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
