"""The command that starts the server, with a flag for each option that is not SGLang's default."""

from __future__ import annotations

from collections.abc import Iterator

from ...run.served import checkpoint_word
from . import speculative
from .options import TRTLLM, SglangOptions
from .versions import COUNTED_DRAFT

# A key of the run file, its flag, and the value for which the flag is left out.
VALUES = (
    ("max_seq_len", "--context-length", None),
    ("tensor_parallel_size", "--tp-size", 1),
    ("pipeline_parallel_size", "--pp-size", 1),
    ("data_parallel_size", "--dp-size", 1),
    ("expert_parallel_size", "--ep-size", 1),
    ("gpu_memory_utilization", "--mem-fraction-static", None),
    ("max_num_seqs", "--max-running-requests", None),
    ("max_total_tokens", "--max-total-tokens", None),
    ("chunked_prefill_size", "--chunked-prefill-size", None),
    ("page_size", "--page-size", None),
    ("max_lora_rank", "--max-lora-rank", None),
    ("max_loras", "--max-loras-per-batch", None),
    ("cpu_offload_gb", "--cpu-offload-gb", None),
    ("swa_full_tokens_ratio", "--swa-full-tokens-ratio", 0.8),
    ("mamba_full_memory_ratio", "--mamba-full-memory-ratio", 0.9),
    ("hicache_ratio", "--hicache-ratio", None),
    ("hicache_size", "--hicache-size", None),
)
SWITCHES = (
    ("enable_dp_attention", "--enable-dp-attention"),
    ("enforce_eager", "--disable-cuda-graph"),
    ("disable_radix_cache", "--disable-radix-cache"),
    ("disable_prefill_cuda_graph", "--disable-prefill-cuda-graph"),
    ("max_lora_rank", "--enable-lora"),
)
DTYPES = {"fp16": "float16", "fp32": "float32"}
CACHES = {"fp8": "fp8_e4m3", "bf16": "bfloat16"}
# Formats that SGLang quantizes to while it loads; others must be in the checkpoint.
ONLINE = {
    "fp8": ("--quantization", "fp8"),
    "int8": ("--quantization", "w8a8_int8"),
    "int4": ("--torchao-config", "int4wo-128"),
    "nf4": ("--quantization", "bitsandbytes", "--load-format", "bitsandbytes"),
}


def command(setting: SglangOptions) -> tuple[str, ...]:
    """The words of the command."""
    model = checkpoint_word(setting.run, ONLINE)
    return ("python", "-m", "sglang.launch_server", "--model-path", model, *_flags(setting))


def _flags(setting: SglangOptions) -> Iterator[str]:
    options = setting.run.options
    for key, flag, default in VALUES:
        if options[key] is not None and options[key] != default:
            yield from (flag, str(options[key]))
    for key, flag in SWITCHES:
        if options[key]:
            yield flag
    if options["hicache_ratio"] or options["hicache_size"]:
        yield "--enable-hierarchical-cache"
    if options["max_lora_rank"]:
        yield from ("--lora-target-modules", "all")
    late = setting.version >= COUNTED_DRAFT
    graph = "--cuda-graph-max-bs-decode" if late else "--cuda-graph-max-bs"
    if options["cuda_graph_max_bs"] is not None:
        yield from (graph, str(options["cuda_graph_max_bs"]))
    if options["cuda_graph_bs"]:
        sizes = "--cuda-graph-bs-decode" if late else "--cuda-graph-bs"
        yield from (sizes, *map(str, options["cuda_graph_bs"]))
    if options["attention_backend"]:
        kernels = "trtllm_mla" if setting.latent else "trtllm_mha"
        backend = options["attention_backend"]
        yield from ("--attention-backend", kernels if backend == TRTLLM else backend)
    if options["dtype"] in DTYPES:
        yield from ("--dtype", DTYPES[options["dtype"]])
    if options["kv_cache_dtype"] in CACHES:
        yield from ("--kv-cache-dtype", CACHES[options["kv_cache_dtype"]])
    if not setting.run.quantized:
        yield from ONLINE.get(str(options["quantization"]), ())
    yield from _speculation(setting)


def _speculation(setting: SglangOptions) -> Iterator[str]:
    name, options = speculative.method(setting.run), setting.run.options
    if not name:
        return
    yield from ("--speculative-algorithm", name.upper())
    if isinstance(options["speculative_model"], str):
        yield from ("--speculative-draft-model-path", options["speculative_model"])
    if options["num_speculative_tokens"]:
        depth = speculative.draft_depth(setting.run)
        yield from ("--speculative-num-steps", str(depth.steps))
        yield from ("--speculative-eagle-topk", str(depth.branches))
        yield from ("--speculative-num-draft-tokens", str(depth.tokens))
