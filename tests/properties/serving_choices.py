"""Options of servers to draw from."""

from __future__ import annotations

from typing import Any

NAMED: list[dict[str, Any]] = [
    {"gpu": "h100-80gb-sxm"}, {"gpu": "h200-141gb-sxm"}, {"gpu": "rtx-4090"}, {"gpu": "t4"},
    {"gpu": "a100-40gb-sxm"}, {"gpu": "b200-180gb-sxm"}, {"gpu": "l4"},
]  # fmt: skip
CARDS: list[dict[str, Any]] = [
    *NAMED, {"gpu_memory_gb": 80}, {"gpu_memory_bytes": 2**30}, {"gpu_memory_bytes": 10**15},
    {"gpu": "h100-80gb-sxm", "available_memory_bytes": 60 * 2**30},
]  # fmt: skip
VERSIONS = {
    "vllm": ["0.6.5", "0.7.3", "0.8.5", "0.9.2", "0.11.0", "0.14.0", "0.20.1", "0.28.0", "9.0"],
    "sglang": ["0.4.3", "0.4.6", "0.5.3", "0.5.10", "9.0"],
    "tensorrt_llm": ["0.8.0", "0.12.0", "0.20.0", "1.0.0", "1.1.0", "9.0"],
    "tgi": ["2.0.4", "2.4.0", "3.0.0", "3.3.4", "9.0"],
    "llamacpp": ["b4000", "b6000", "b99999", "x"],
    "transformers": ["4.50.0", "5.17.0"],
}
FORMATS = ["none", "fp8", "int8", "int4", "awq", "gptq_int4", "gptq_int8", "nf4", "mxfp4",
           "nvfp4", "q4_k_m", "q8_0", "iq2_xxs", "f16", "?"]  # fmt: skip
CHOICES: dict[str, list[Any]] = {
    "engine_generation": ["v0", "v1", "pytorch", "tensorrt"],
    "batch_size": [1, 7], "prompt_len": [1, 900], "new_tokens": [0, 1, 50],
    "max_seq_len": [1, 17, 2048, 40_000, 10**7], "dtype": ["bf16", "fp16", "fp32", "half"],
    "quantization": FORMATS,
    "kv_cache_dtype": ["auto", "bf16", "fp16", "fp8", "int8", "int4", "nvfp4"],
    "pipeline_parallel_size": [2, 3, 100], "data_parallel_size": [2],
    "expert_parallel_size": [2, 4], "decode_context_parallel_size": [2],
    "gpu_memory_utilization": [0.01, 0.5, 0.97, 1.0],
    "max_num_batched_tokens": [1, 100, 4096, 10**6], "max_num_seqs": [1, 17, 5000],
    "max_total_tokens": [1, 5000, 10**9], "enforce_eager": [True],
    "attention": ["eager", "sdpa", "flash_attention_2"], "max_loras": [1, 4],
    "max_lora_rank": [1, 16, 512], "num_speculative_tokens": [1, 5],
    "speculative_method": ["ngram", "eagle3", "mtp", "draft_model", "medusa", "?"],
    "speculative_model": ["llama3.2-1b", "gpt2"], "cache_implementation": ["static", "dynamic"],
    "num_beams": [2, 4], "num_return_sequences": [2], "do_sample": [True], "top_k": [0, 5],
    "top_p": [0.5], "block_size": [1, 16, 64, 17], "enable_prefix_caching": [True, False],
    "enable_chunked_prefill": [True, False], "max_cudagraph_capture_size": [0, 8, 2048],
    "kv_cache_memory_bytes": [1, 10**9, 10**14], "cpu_offload_gb": [0, 0.5, 1000],
    "swap_space": [0, 4], "use_flashinfer_sampler": [True, False],
    "chunked_prefill_size": [1, 512, 100_000], "cuda_graph_max_bs": [1, 1000],
    "page_size": [16, 64, 17], "enable_dp_attention": [True], "swa_full_tokens_ratio": [0.1],
    "mamba_full_memory_ratio": [0.0, 3.0], "disable_radix_cache": [True], "hicache_ratio": [2.0],
    "max_beam_width": [1, 4], "max_attention_window": [[512], [512, 4096]],
    "cross_kv_cache_fraction": [0.3], "max_input_tokens": [1, 100], "cuda_graphs": [[0], [1, 64]],
    "enable_prefill_logprobs": [True], "n_gpu_layers": [0, 1, 5, 99], "n_ubatch": [1, 1024],
    "n_batch": [1, 4096], "n_parallel": [1, 8], "main_gpu": [0, 1], "n_cpu_moe": [1, 100],
    "no_kv_offload": [True], "kv_unified": [True, False], "swa_full": [True],
    "cache_type_k": ["q8_0", "f16", "?"], "cache_type_v": ["q4_0", "f16"],
    "flash_attn": [True, False], "split_mode": ["none", "layer", "row"],
    "tensor_split": [[1.0], [1.0, 3.0], [0.0, 1.0]],
}  # fmt: skip
# The choices that servers make by the card, made.
FIXED: dict[str, Any] = {
    "gpu_memory_utilization": 0.9, "max_num_batched_tokens": 2048, "max_num_seqs": 64,
    "chunked_prefill_size": 2048, "cuda_graph_max_bs": 32, "max_seq_len": 1024,
}  # fmt: skip
