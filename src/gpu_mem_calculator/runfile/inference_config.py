"""The run file's `inference` section, and the results of a server.

Keys are named as in the engines. Each engine lists the keys it has, and refuses the others.
"""

from typing import Literal

from msgspec import Struct

from .field_types import Count, Each, EachOrNone, Flag, Named, Ratio, Share, Size, Stages, Text

GraphMode = Literal["none", "piecewise", "full", "full_decode_only", "full_and_piecewise"]


class InferenceConfig(Struct, kw_only=True, omit_defaults=True):
    """How it is served, instead of training."""

    engine: Text | None = None
    engine_version: Text | None = None
    engine_generation: Text | None = None
    batch_size: Count | None = None
    prompt_len: Count | None = None
    new_tokens: Size | None = None
    max_seq_len: Count | None = None
    dtype: Text | None = None
    quantization: Text | None = None
    kv_cache_dtype: Literal["auto", "bf16", "fp16", "fp8", "int8", "int4", "nvfp4"] | None = None
    tensor_parallel_size: Count | None = None
    pipeline_parallel_size: Stages | None = None
    data_parallel_size: Count | None = None
    expert_parallel_size: Count | None = None
    decode_context_parallel_size: Count | None = None
    gpu_memory_utilization: Share | None = None
    max_num_batched_tokens: Count | None = None
    max_num_seqs: Count | None = None
    max_total_tokens: Count | None = None
    enforce_eager: Flag | None = None
    attention: Literal["eager", "sdpa", "flash_attention_2"] | None = None
    # adapters and speculation
    max_loras: Each | None = None
    max_lora_rank: Count | None = None
    speculative_method: Text | None = None
    speculative_model: Named | None = None
    num_speculative_tokens: Count | None = None
    # transformers
    cache_implementation: Text | None = None
    num_beams: Count | None = None
    num_return_sequences: Count | None = None
    do_sample: Flag | None = None
    top_k: Size | None = None
    top_p: Share | None = None
    # vLLM
    block_size: Count | None = None
    enable_prefix_caching: Flag | None = None
    enable_chunked_prefill: Flag | None = None
    max_cudagraph_capture_size: EachOrNone | None = None
    cudagraph_capture_sizes: list[Count] | None = None
    cudagraph_mode: GraphMode | None = None
    language_model_only: Flag | None = None
    mm_encoder_tp_mode: Literal["weights", "data"] | None = None
    limit_mm_per_prompt: dict[str, Size] | None = None
    kv_cache_memory_bytes: Count | Size | None = None
    cpu_offload_gb: Ratio | None = None
    swap_space: Ratio | None = None
    kv_offloading_size: Ratio | None = None
    lmcache_size: Ratio | None = None
    enable_sleep_mode: Flag | None = None
    use_flashinfer_sampler: Flag | None = None  # VLLM_USE_FLASHINFER_SAMPLER
    # SGLang
    chunked_prefill_size: Each | None = None
    cuda_graph_max_bs: Each | None = None
    cuda_graph_bs: list[Count] | None = None
    disable_prefill_cuda_graph: Flag | None = None
    attention_backend: Literal["fa3", "flashinfer", "triton", "trtllm"] | None = None
    page_size: Count | None = None
    enable_dp_attention: Flag | None = None
    swa_full_tokens_ratio: Share | None = None
    mamba_full_memory_ratio: Ratio | None = None
    disable_radix_cache: Flag | None = None
    hicache_ratio: Ratio | None = None
    hicache_size: Size | None = None
    # TensorRT-LLM
    max_beam_width: Count | None = None
    max_attention_window: list[Count] | None = None
    cross_kv_cache_fraction: Share | None = None
    host_cache_size: Size | None = None
    # TGI
    max_input_tokens: Count | None = None
    cuda_graphs: list[Size] | None = None
    enable_prefill_logprobs: Flag | None = None
    # llama.cpp
    n_gpu_layers: Size | None = None
    n_batch: Count | None = None
    n_ubatch: Count | None = None
    n_parallel: Count | None = None
    cache_type_k: Text | None = None
    cache_type_v: Text | None = None
    flash_attn: Flag | None = None
    split_mode: Literal["none", "layer", "row"] | None = None
    tensor_split: list[float] | None = None
    main_gpu: Size | None = None
    n_cpu_moe: Size | None = None
    override_tensor: Text | None = None
    fit: Flag | None = None
    fit_target: Size | None = None
    fit_ctx: Count | None = None
    ollama_version: Text | None = None
    no_kv_offload: Flag | None = None
    kv_unified: Flag | None = None
    swa_full: Flag | None = None


class ExpectedSpeed(Struct, frozen=True, kw_only=True):
    """Estimated tokens per second with their 80 % interval, and how many published benchmarks of
    the engine the estimate was compared with.
    """

    median: float
    least: float
    most: float
    figures: int


class DecodeSpeed(Struct, frozen=True, kw_only=True):
    """The most tokens per second of so many concurrent sequences, in all and each; and the tokens
    per second to expect in all.
    """

    sequences: int
    tokens_per_second: float
    tokens_per_second_each: float
    bound: str
    expected: ExpectedSpeed | None = None


class SpeedResult(Struct, frozen=True, kw_only=True):
    """Estimates, and upper bounds by roofline: compute, memory bandwidth, interconnect.

    `decode` is for sequences of `context` tokens: one alone, and as many as the verdict names.
    `expected_prefill` are the prompt tokens per second to expect. `notes` say what is left out.
    """

    engine: str
    prompt_len: int
    context: int
    first_token_seconds: float
    prefill_tokens_per_second: float
    prefill_bound: str
    decode: list[DecodeSpeed]
    notes: list[str] = []
    expected_prefill: ExpectedSpeed | None = None


class ServingResult(Struct, frozen=True, kw_only=True):
    """A server's memory on one GPU, and the sequences that its KV cache holds.

    - `max_concurrency`: sequences of max_seq_len, as vLLM prints it
    - `users`: whole sequences of `users_context` tokens that run concurrently on all `replicas`
    - `users_asked`: the number that the run file asks for (`batch_size`), if any
    - `longest_context`: tokens of the longest single sequence
    - `problem`: why it will not start
    - `layers_on_gpus` of `layers`, the output counted as one, where the others are on the host;
      `partial_layers` have some weights there; `keeps_fewer`: the server chose it, because its GPUs
      are too small
    """

    weights_bytes: int
    activation_bytes: int
    non_torch_bytes: int
    graph_bytes: int
    kv_pool_bytes: int
    kv_tokens: int
    kv_bytes_per_token: int
    max_seq_len: int
    max_concurrency: float
    most_sequences: int
    longest_context: int
    problem: str
    command: str
    users: int = 0
    users_context: int = 0
    users_asked: int | None = None
    replicas: int = 1
    layers_on_gpus: int | None = None
    layers: int | None = None
    partial_layers: int = 0
    keeps_fewer: bool = False
