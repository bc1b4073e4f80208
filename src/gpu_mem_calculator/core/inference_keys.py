"""Label and meaning of each key of `inference`: (level, label, meaning), as in keys.py."""

from __future__ import annotations

from collections.abc import Mapping

MAIN, MORE, EXPERT = "main", "more", "expert"  # how soon a form shows a key
Row = tuple[str, str, str]

INFERENCE: Mapping[str, Row] = {
    "engine": (MAIN, "engine", "What serves the model."),
    "engine_version": (
        MORE,
        "version",
        "Which release, where that changes the answer; one that is "
        "newer than what is modelled is taken for the newest that is.",
    ),
    "engine_generation": (
        EXPERT,
        "generation",
        "vLLM: v0 or v1, its two engines; TensorRT-LLM: "
        "its backend, pytorch or tensorrt. Unset: the version's own.",
    ),
    "batch_size": (
        MAIN,
        "sequences at once",
        "Sequences at once; of a server, those whose share "
        "of the cache is told. llama.cpp: its slots.",
    ),
    "prompt_len": (
        MAIN,
        "prompt tokens",
        "Tokens of each prompt; without it fewer than the "
        "default where the new tokens need the room.",
    ),
    "new_tokens": (
        MAIN,
        "new tokens",
        "Generated behind the prompt; with transformers 0 is one forward pass.",
    ),
    "max_seq_len": (
        MAIN,
        "longest sequence",
        "Prompt and new tokens together stay within it; "
        "unset: the model's own. llama.cpp: the context of all slots together.",
    ),
    "dtype": (
        MORE,
        "dtype",
        "fp32, fp16 or bf16: of the weights that are not packed, and of the "
        "cache where nothing else is said.",
    ),
    "quantization": (
        MAIN,
        "weights in",
        "How weights are stored; none is as the checkpoint has them. llama.cpp: a GGUF file type.",
    ),
    "kv_cache_dtype": (
        MAIN,
        "KV cache in",
        "What keys and values are kept in; auto is the model's dtype, or what the checkpoint says.",
    ),
    "tensor_parallel_size": (
        MAIN,
        "tensor parallel",
        "GPUs that share every layer; it divides the heads.",
    ),
    "pipeline_parallel_size": (
        MORE,
        "pipeline parallel",
        "Stages of GPUs that have some of the layers each.",
    ),
    "data_parallel_size": (
        MORE,
        "data parallel",
        "Copies of the server, each with a cache of its "
        "own; with enable_dp_attention, of attention alone.",
    ),
    "expert_parallel_size": (
        MORE,
        "expert parallel",
        "Ranks over which whole experts are spread, instead of each expert being cut.",
    ),
    "decode_context_parallel_size": (
        EXPERT,
        "decode context parallel",
        "Tensor-parallel ranks that share the cache they would repeat.",
    ),
    "gpu_memory_utilization": (
        MAIN,
        "share of the memory",
        "vLLM: the share of the card it may "
        "take (unset: 0.92 since 0.20, 0.9 before); SGLang: "
        "mem_fraction_static, of weights and cache (unset: its choice for "
        "the card); TensorRT-LLM: the cache's share of what is left free; "
        "TGI: cuda_memory_fraction.",
    ),
    "max_num_batched_tokens": (
        MORE,
        "tokens of a step",
        "Tokens that one step runs at most; the "
        "trial run has as many. TGI: of all prompts of a prefill. Unset: "
        "the engine's choice for the card.",
    ),
    "max_num_seqs": (
        MAIN,
        "most sequences",
        "Sequences that run at once at most; unset: the "
        "engine's choice for the card. llama.cpp: its slots.",
    ),
    "max_total_tokens": (
        MORE,
        "most tokens",
        "SGLang and TensorRT-LLM: tokens that the cache "
        "holds at most; TGI: those of one request, as max_seq_len.",
    ),
    "enforce_eager": (
        MORE,
        "no CUDA graphs",
        "Run without CUDA graphs, which take memory of their own.",
    ),
    "attention": (
        MORE,
        "attention",
        "Which kernel transformers runs: eager holds scores of every "
        "pair of tokens; unset: sdpa, or eager where the model has no other.",
    ),
    "max_loras": (
        EXPERT,
        "adapters at once",
        "LoRA adapters that are on the GPU at once; acts with max_lora_rank.",
    ),
    "max_lora_rank": (
        EXPERT,
        "adapter rank",
        "The widest LoRA adapter; giving it makes room for adapters.",
    ),
    "speculative_method": (
        MORE,
        "speculation",
        "How tokens are guessed ahead, by the engine's own name.",
    ),
    "speculative_model": (
        MORE,
        "draft model",
        "The model that guesses ahead, by name or as its "
        "config.json; with transformers generate's assistant.",
    ),
    "num_speculative_tokens": (MORE, "tokens ahead", "Tokens that are guessed at a time."),
    "cache_implementation": (
        MORE,
        "cache",
        "dynamic grows with the sequence; static has all of its room from the start.",
    ),
    "num_beams": (MORE, "beams", "Beams of a search, each a sequence of its own."),
    "num_return_sequences": (
        EXPERT,
        "answers",
        "Answers to each prompt: beams that are returned, or samples.",
    ),
    "do_sample": (EXPERT, "sample", "Draw the next token instead of taking the likeliest."),
    "top_k": (EXPERT, "top k", "Sample from so many of the likeliest tokens; unset: 50, 0 is all."),
    "top_p": (
        EXPERT,
        "top p",
        "Sample from the likeliest tokens that have this much probability "
        "together, which takes a sort; unset: 1.",
    ),
    "block_size": (EXPERT, "block", "Tokens of one block of the cache; unset: the version's own."),
    "enable_prefix_caching": (
        EXPERT,
        "prefix caching",
        "Keep the cache of prompts that begin alike; unset: as the version has it.",
    ),
    "enable_chunked_prefill": (
        EXPERT,
        "chunked prefill",
        "Cut long prompts into pieces; without, "
        "a step must hold the longest. Unset: as the version has it.",
    ),
    "max_cudagraph_capture_size": (
        EXPERT,
        "largest graph",
        "Tokens of the largest CUDA graph; 0 is none, unset the version's choice.",
    ),
    "kv_cache_memory_bytes": (
        EXPERT,
        "cache (bytes)",
        "The cache's size, instead of a share of the card; from vLLM 0.10.2 on.",
    ),
    "cpu_offload_gb": (
        MORE,
        "weights on the host (GiB)",
        "GiB of each GPU's weights that stay in host memory.",
    ),
    "swap_space": (
        EXPERT,
        "swap space (GiB)",
        "GiB of host memory for each GPU that the cache may "
        "be swapped to; of vLLM's V0 engine, where it is 4 unless given.",
    ),
    "use_flashinfer_sampler": (
        EXPERT,
        "FlashInfer sampler",
        "Whether FlashInfer picks the tokens, "
        "with less memory than torch (VLLM_USE_FLASHINFER_SAMPLER).",
    ),
    "chunked_prefill_size": (
        MORE,
        "tokens of a prefill",
        "Tokens of a prefill at once; unset: SGLang's choice for the card.",
    ),
    "cuda_graph_max_bs": (
        EXPERT,
        "largest graph",
        "Sequences of the largest CUDA graph; unset: the engine's choice.",
    ),
    "page_size": (
        EXPERT,
        "page",
        "Tokens of one page of the cache; unset: 1, or what the attention kernels need.",
    ),
    "enable_dp_attention": (
        EXPERT,
        "data-parallel attention",
        "Each rank runs attention for sequences of its own, and shares the rest of the layers.",
    ),
    "swa_full_tokens_ratio": (
        EXPERT,
        "window tokens",
        "Tokens that layers with a window have room for, for each token of the other layers.",
    ),
    "mamba_full_memory_ratio": (
        EXPERT,
        "states' memory",
        "Memory of the states, in proportion to that of keys and values.",
    ),
    "disable_radix_cache": (EXPERT, "no radix cache", "Keep no prefixes in the cache."),
    "hicache_ratio": (
        EXPERT,
        "host cache",
        "A second cache in host memory, so many times as large as the GPU's.",
    ),
    "max_beam_width": (EXPERT, "beams", "The widest beam search; each beam has a cache."),
    "max_attention_window": (
        EXPERT,
        "windows",
        "Tokens that layers keep, a pattern that is "
        "repeated over them; unset: every layer keeps the whole sequence.",
    ),
    "cross_kv_cache_fraction": (
        EXPERT,
        "encoder's cache",
        "The encoder's share of the cache, for encoder-decoder models; unset: 0.5.",
    ),
    "max_input_tokens": (
        MORE,
        "longest prompt",
        "Tokens of a prompt at most, fewer than of a request.",
    ),
    "cuda_graphs": (
        EXPERT,
        "graphs",
        "Batch sizes that CUDA graphs are captured for; [0] is none.",
    ),
    "enable_prefill_logprobs": (
        EXPERT,
        "prompt logprobs",
        "Logits for every token of the prompt, not for its last alone.",
    ),
    "n_gpu_layers": (
        MAIN,
        "layers on GPUs",
        "-ngl: layers in GPUs, counted from the last; the output counts as one. Unset: all.",
    ),
    "n_batch": (
        EXPERT,
        "batch of a prompt",
        "-b: tokens of a prompt that are handed over at once.",
    ),
    "n_ubatch": (
        MORE,
        "micro-batch of a prompt",
        "-ub: tokens that one graph runs; the compute buffer grows with them.",
    ),
    "n_parallel": (
        MAIN,
        "slots",
        "-np: sequences at once; unset: 4 that share one cache, 1 in old builds.",
    ),
    "cache_type_k": (
        MORE,
        "keys in",
        "-ctk: the type of the cached keys; unset: as kv_cache_dtype says.",
    ),
    "cache_type_v": (
        MORE,
        "values in",
        "-ctv: the type of the cached values; packed ones need "
        "flash attention. Unset: as kv_cache_dtype says.",
    ),
    "flash_attn": (
        MORE,
        "flash attention",
        "-fa: scores are not kept; unset: on where CUDA has a kernel, off in old builds.",
    ),
    "split_mode": (
        EXPERT,
        "several GPUs",
        "-sm: layers are shared out to the GPUs, or one has everything.",
    ),
    "tensor_split": (
        EXPERT,
        "shares of GPUs",
        "-ts: how much each GPU gets, one number for each; unset: equal parts.",
    ),
    "main_gpu": (
        EXPERT,
        "main GPU",
        "-mg: the GPU that has everything where split_mode is none; unset: the first.",
    ),
    "n_cpu_moe": (
        MAIN,
        "layers with experts on the host",
        "--n-cpu-moe: the first layers' experts stay in host memory.",
    ),
    "no_kv_offload": (EXPERT, "cache on the host", "-nkvo: the cache stays in host memory."),
    "kv_unified": (
        EXPERT,
        "one cache",
        "-kvu: slots share one cache instead of a part each; "
        "unset: where their number is not given.",
    ),
    "swa_full": (
        EXPERT,
        "whole windows",
        "--swa-full: layers with a window keep the whole context.",
    ),
}
