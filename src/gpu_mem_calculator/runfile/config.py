"""The run file as Python objects.

Every field of a section is optional: a key that is left out takes the framework's default or the
preset's value. `*_gb` is GiB (2³⁰ bytes), as in the first version of this interface; `*_bytes` is
an exact integer.
"""

from collections.abc import Mapping
from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from ..run.limits import Limit
from ..run.releases import UserRelease
from .field_types import (
    Card,
    Compile,
    Count,
    Flag,
    Layers,
    Lengths,
    Levels,
    Loss,
    Object,
    Offload,
    Parameters,
    Policy,
    Positive,
    Rate,
    Reference,
    Revision,
    Share,
    Size,
    Stages,
    Text,
)
from .inference_config import InferenceConfig as InferenceConfig
from .program import Program, Translation


class ModelConfig(Struct, kw_only=True, omit_defaults=True):
    """Which model: a name, a config.json, or plain numbers."""

    name: Text | None = None
    revision: Revision | None = None
    config: Object | None = None
    implementation: Literal["transformers", "megatron", "torchtitan", "nanotron"] | None = None
    recorded: Object | None = None
    num_parameters: Parameters | None = None
    num_layers: Layers | None = None
    hidden_size: Count | None = None
    num_attention_heads: Count | None = None
    num_key_value_heads: Count | None = None
    head_dim: Count | None = None
    intermediate_size: Count | None = None
    gated_mlp: Flag | None = None
    normalization: Literal["rmsnorm", "layernorm"] | None = None
    position_embedding: Literal["rope", "learned", "alibi", "none"] | None = None
    bias: Flag | None = None
    dropout: Rate | None = None
    vocab_size: Count | None = None
    max_seq_len: Count | None = None
    tie_word_embeddings: Flag | None = None
    largest_layer_params: Count | None = None
    moe_enabled: Flag | None = None
    num_experts: Count | None = None
    top_k: Count | None = None
    expert_intermediate_size: Count | None = None
    shared_expert_intermediate_size: Size | None = None


class LoraConfig(Struct, kw_only=True, omit_defaults=True):
    """LoRA adapters, with PEFT's own names."""

    r: Count = 8
    target_modules: list[str] | str | None = None
    dropout: Rate = 0.0
    dora: Flag = False
    adapter_dtype: Literal["fp32", "bf16", "fp16"] = "fp32"
    initial_dtype: Literal["fp32", "bf16", "fp16"] | None = None


class GenerationConfig(Struct, kw_only=True, omit_defaults=True):
    """Completions that the policy generates before a step, as in GRPO and RLOO, and is then trained
    on.
    """

    prompt: Count | None = None
    new_tokens: Count | None = None
    sequences: Count | None = None
    engine: Literal["transformers", "vllm", "elsewhere"] = "transformers"
    cache_implementation: Literal["dynamic", "static"] = "dynamic"
    temperature: Positive = 1.0
    top_k: Size = 0
    top_p: Share = 1.0
    old_logprobs: Flag = False
    gpu_memory_utilization: Share | None = None
    sleep_level: Literal[0, 1, 2] = 0
    tensor_parallel_size: Count | None = None
    max_model_len: Count | None = None


class EvaluationConfig(Struct, kw_only=True, omit_defaults=True):
    """An evaluation between steps, with the defaults of transformers' Trainer."""

    batch_size: Count = 8
    seq_len: Count | None = None
    batches: Count = 1
    rows: Count | None = None
    keep_logits: Flag = False
    keep_tokens: Flag = False
    accumulation_steps: Count | None = None


class SamplingConfig(Struct, kw_only=True, omit_defaults=True):
    """In which order the examples of `lengths` become batches, with Trainer's own words."""

    strategy: Literal["random", "sequential", "group_by_length", "distributed"] = "random"
    data_seed: Size | None = None
    max_steps: Count | None = None
    epochs: Positive | None = None
    drop_last: Flag = False


class GeneratesConfig(Struct, kw_only=True, omit_defaults=True):
    """A program's own call of `generate` between steps."""

    batch_size: Count = 1
    prompt: Count = 512
    new_tokens: Count = 128
    use_cache: Flag = True


class TrainingConfig(Struct, kw_only=True, omit_defaults=True):
    """How it is trained."""

    batch_size: Count | None = None
    seq_len: Count | None = None
    lengths: Lengths | None = None
    padding: Literal["longest", "max_length"] | None = None
    pad_to_multiple_of: Count | None = None
    padding_free: Flag | None = None
    packing: Literal["none", "bfd", "bfd_split", "wrapped"] | None = None
    sampling: SamplingConfig | None = None
    gradient_accumulation_steps: Count | None = None
    dtype: Text | None = None
    precision: Literal["fp32", "bf16_mixed", "fp16_mixed", "bf16_pure", "fp16_pure"] | None = None
    autocast: Flag | None = None
    autocast_cache: Flag | None = None
    optimizer: Text | None = None
    optimizer_implementation: Literal["foreach", "fused", "forloop"] | None = None
    embedding_states_32bit: Flag | None = None
    gradient_clipping: Annotated[float, Meta(ge=0.0, description="a number, 0 or more")] | None = (
        None
    )
    zero_grad: Literal["after_step", "before_forward", "before_backward"] | None = None
    activation_checkpointing: Levels | None = None
    recompute: Policy | None = None
    checkpoint_reentrant: Flag | None = None
    attention: Literal["eager", "sdpa", "flash_attention_2", "flash_attention_3"] | None = None
    use_cache: Flag | None = None
    loss: Loss | None = None
    loss_chunk_size: Count | None = None
    labelled_tokens: Count | None = None
    packed_documents: Count | None = None
    disable_dropout: Flag | None = None
    reference_model: Reference | None = None
    label_smoothing: Rate | None = None
    liger: Flag | list[str] | None = None
    generation: GenerationConfig | None = None
    evaluation: EvaluationConfig | None = None
    generates: GeneratesConfig | None = None
    saving: (
        Literal[
            "none",
            "full_state_dict",
            "full_state_dict_on_gpus",
            "sharded",
            "sharded_on_host",
            "async",
        ]
        | None
    ) = None
    resuming: Literal["none", "as_tool", "cpu", "gpu", "first_gpu"] | None = None
    ema: Literal["none", "gpu", "cpu"] | None = None
    data_workers: Size | None = None
    load_dtype: Literal["fp32", "bf16", "fp16"] | None = None
    loading: Literal["first_rank", "first_rank_and_zeros"] | None = None
    compile: Compile | None = None
    lora: LoraConfig | None = None
    quantization: Literal["none", "nf4", "int8"] | None = None
    double_quant: Flag | None = None
    upcast_unquantized: Flag | None = None
    upcast_at_startup: Flag | None = None
    nf4_compute_dtype: Literal["fp32", "bf16", "fp16"] | None = None
    from_pretrained: Flag | None = None
    int8_threshold: Annotated[float, Meta(ge=0.0, description="a number, 0 or more")] | None = None
    int8_outliers: Annotated[float, Meta(ge=0.0, le=1.0, description="from 0 to 1")] | None = None
    freeze_vision_tower: Flag | None = None
    pytorch_alloc_conf: Text | None = None
    cublas_workspace_config: Text | None = None


# Objects inside the training section, by key.
INNER: Mapping[str, type[Struct]] = {
    "lora": LoraConfig,
    "generation": GenerationConfig,
    "evaluation": EvaluationConfig,
    "generates": GeneratesConfig,
    "sampling": SamplingConfig,
}


class ParallelismConfig(Struct, kw_only=True, omit_defaults=True):
    """How many ranks share each axis."""

    data_parallel_size: Count | None = None
    tensor_parallel_size: Count | None = None
    pipeline_parallel_size: Stages | None = None
    context_parallel_size: Count | None = None
    expert_parallel_size: Count | None = None
    virtual_pipeline_size: Count | None = None
    sequence_parallel: Flag | None = None


class EngineConfig(Struct, kw_only=True, omit_defaults=True):
    """Which framework, with its own option names and defaults."""

    type: Text | None = None
    # DeepSpeed
    zero_stage: Annotated[int, Meta(ge=0, le=3, description="0, 1, 2 or 3")] | None = None
    offload_optimizer: Offload | None = None
    offload_param: Offload | None = None
    zero_init: Flag | None = None
    reduce_bucket_size: Size | None = None
    allgather_bucket_size: Size | None = None
    overlap_comm: Flag | None = None
    contiguous_gradients: Flag | None = None
    stage3_prefetch_bucket_size: Size | None = None
    stage3_max_live_parameters: Size | None = None
    stage3_max_reuse_distance: Size | None = None
    stage3_param_persistence_threshold: Size | None = None
    sub_group_size: Count | None = None
    pin_memory: Flag | None = None
    partition_method: Literal["parameters", "uniform"] | None = None
    partition_activations: Flag | None = None
    cpu_checkpointing: Flag | None = None
    amp: Flag | None = None
    # FSDP
    fsdp_version: Literal[1, 2] | None = None
    sharding_strategy: (
        Literal["full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2"]
        | None
    ) = None
    reduce_dtype: Literal["fp32", "bf16", "fp16"] | None = None
    hybrid_shard_size: Count | None = None
    reshard_root_after_forward: Flag | None = None
    wrap_embedding_and_head: Flag | None = None
    cpu_offload: Flag | None = None
    init_device: Literal["cpu", "cuda", "meta"] | None = None
    init_dtype: Literal["fp32", "bf16", "fp16"] | None = None
    use_orig_params: Flag | None = None
    backward_prefetch: Literal["backward_pre", "backward_post", "none"] | None = None
    forward_prefetch: Flag | None = None
    limit_all_gathers: Flag | None = None
    sync_each_batch: Flag | None = None
    sync_module_states: Flag | None = None
    keep_low_precision_grads: Flag | None = None
    # DDP
    gradient_as_bucket_view: Flag | None = None
    # Megatron
    distributed_optimizer: Flag | None = None
    transformer_implementation: Literal["transformer_engine", "local"] | None = None
    masked_softmax_fusion: Flag | None = None
    gradient_accumulation_fusion: Flag | None = None
    make_vocab_size_divisible_by: Count | None = None
    accumulate_allreduce_grads_in_fp32: Flag | None = None
    attention_softmax_in_fp32: Flag | None = None
    deallocate_pipeline_outputs: Flag | None = None
    transformer_engine_version: Text | None = None
    attention_backend: Literal["auto", "flash", "fused", "unfused", "local"] | None = None
    pipeline_model_parallel_layout: Text | None = None
    decoder_first_pipeline_num_layers: Count | None = None
    decoder_last_pipeline_num_layers: Count | None = None
    account_for_embedding_in_pipeline_split: Flag | None = None
    account_for_loss_in_pipeline_split: Flag | None = None
    microbatch_group_size_per_virtual_pipeline_stage: Count | None = None
    num_distributed_optimizer_instances: Count | None = None
    defer_embedding_wgrad_compute: Flag | None = None
    wgrad_deferral_limit: Size | None = None
    expert_tensor_parallel_size: Count | None = None
    moe_token_dispatcher_type: Literal["allgather", "alltoall", "flex"] | None = None
    moe_expert_capacity_factor: Positive | None = None
    moe_pad_expert_input_to_capacity: Flag | None = None
    tp_comm_overlap: Flag | None = None
    overlap_grad_reduce: Flag | None = None
    overlap_param_gather: Flag | None = None


class GPUConfig(Struct, kw_only=True, omit_defaults=True):
    """Which cards, and how many."""

    gpu: Card | None = None
    num_gpus: Count | None = None
    gpu_memory_gb: Positive | None = None
    gpu_memory_bytes: Count | Annotated[int, Meta(ge=1, le=10**15)] | None = None
    available_memory_bytes: Annotated[int, Meta(ge=1, le=10**15)] | None = None
    used_memory_bytes: Annotated[int, Meta(ge=0, le=10**15)] | None = None
    num_nodes: Count | None = None
    gpus_per_node: Count | None = None
    interconnect: Text | None = None
    nics_per_node: Count | None = None
    node_memory_gb: Positive | None = None
    node_memory_read_from: Text | None = None
    os: Literal["linux", "windows", "wsl"] | None = None


MOST_NOTES, MOST_NOTE = 100, 1000  # sentences, and characters of each
Notes = Annotated[list[Annotated[str, Meta(max_length=MOST_NOTE)]], Meta(max_length=MOST_NOTES)]


class RunFile(Struct, kw_only=True, omit_defaults=True):
    """A whole run file: training, or inference instead.

    Where it has a `program`, training, parallelism and engine have the keys that it means, and
    `translation` says what was assumed. `limits` is what the file or command that it was read from
    has, and what is not modelled; `releases` are the user's, by the package's name; `notes` what it
    was read from, and what was assumed in reading that, a sentence each.
    """

    model: ModelConfig = field(default_factory=ModelConfig)
    inference: InferenceConfig | None = None
    training: TrainingConfig = field(default_factory=TrainingConfig)
    parallelism: ParallelismConfig = field(default_factory=ParallelismConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    hardware: GPUConfig = field(default_factory=GPUConfig)
    program: Program | None = None
    translation: Translation | None = None
    limits: list[Limit] | None = None
    releases: dict[str, UserRelease] | None = None
    notes: Notes | None = None
