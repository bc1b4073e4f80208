"""The run file as Python objects, and the result.

Every field of a section is optional: a key that is left out takes the framework's default or the
preset's value. `*_gb` is GiB (2³⁰ bytes), as in the first version of this interface; `*_bytes` is
an exact integer.
"""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

from .field_types import (
    Card,
    Count,
    Flag,
    Layers,
    Levels,
    Object,
    Offload,
    Parameters,
    Positive,
    Rate,
    Revision,
    Size,
    Text,
)
from .inference_config import InferenceConfig as InferenceConfig
from .inference_config import ServingResult
from .result_views import html_table, one_line, short_text


class ModelConfig(Struct, kw_only=True, omit_defaults=True):
    """Which model: a name, a config.json, or plain numbers."""

    name: Text | None = None
    revision: Revision | None = None
    config: Object | None = None
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
    target_modules: list[str] | Literal["all-linear"] | None = None
    dropout: Rate = 0.0
    dora: Flag = False
    adapter_dtype: Literal["fp32", "bf16", "fp16"] = "fp32"


class TrainingConfig(Struct, kw_only=True, omit_defaults=True):
    """How it is trained."""

    batch_size: Count | None = None
    seq_len: Count | None = None
    gradient_accumulation_steps: Count | None = None
    dtype: Text | None = None
    precision: Literal["fp32", "bf16_mixed", "fp16_mixed", "bf16_pure", "fp16_pure"] | None = None
    autocast: Flag | None = None
    optimizer: Text | None = None
    optimizer_implementation: Literal["foreach", "fused", "forloop"] | None = None
    gradient_clipping: Annotated[float, Meta(ge=0.0, description="a number, 0 or more")] | None = (
        None
    )
    activation_checkpointing: Levels | None = None
    checkpoint_reentrant: Flag | None = None
    attention: Literal["eager", "sdpa", "flash_attention_2"] | None = None
    lora: LoraConfig | None = None
    quantization: Literal["none", "nf4", "int8"] | None = None
    double_quant: Flag | None = None
    upcast_unquantized: Flag | None = None
    freeze_vision_tower: Flag | None = None
    pytorch_alloc_conf: Text | None = None


class ParallelismConfig(Struct, kw_only=True, omit_defaults=True):
    """How many ranks share each axis."""

    data_parallel_size: Count | None = None
    tensor_parallel_size: Count | None = None
    pipeline_parallel_size: Count | None = None
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
    sharding_strategy: Literal["full_shard", "shard_grad_op", "no_shard", "hybrid_shard"] | None = (
        None
    )
    reduce_dtype: Literal["fp32", "bf16", "fp16"] | None = None
    hybrid_shard_size: Count | None = None
    reshard_root_after_forward: Flag | None = None
    cpu_offload: Flag | None = None
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


class GPUConfig(Struct, kw_only=True, omit_defaults=True):
    """Which cards, and how many."""

    gpu: Card | None = None
    num_gpus: Count | None = None
    gpu_memory_gb: Positive | None = None
    gpu_memory_bytes: Count | Annotated[int, Meta(ge=1, le=10**15)] | None = None
    available_memory_bytes: Annotated[int, Meta(ge=1, le=10**15)] | None = None
    num_nodes: Count | None = None
    gpus_per_node: Count | None = None
    interconnect: Text | None = None


class RunFile(Struct, kw_only=True, omit_defaults=True):
    """A whole run file: training, or inference instead."""

    model: ModelConfig = field(default_factory=ModelConfig)
    inference: InferenceConfig | None = None
    training: TrainingConfig = field(default_factory=TrainingConfig)
    parallelism: ParallelismConfig = field(default_factory=ParallelismConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    hardware: GPUConfig = field(default_factory=GPUConfig)


class MemoryBreakdown(Struct, frozen=True, kw_only=True):
    """What the card must have, by what it is for; the parts add up to the whole."""

    model_params_gb: float
    gradients_gb: float
    optimizer_states_gb: float
    activations_gb: float
    overhead_gb: float

    @property
    def total_memory_gb(self) -> float:
        """The sum of the parts."""
        return (
            self.model_params_gb
            + self.gradients_gb
            + self.optimizer_states_gb
            + self.activations_gb
            + self.overhead_gb
        )


class StageResult(Struct, frozen=True, kw_only=True):
    """One pipeline stage."""

    stage: int
    num_layers: int
    allocated_bytes: int
    peak_phase: str


class PhaseResult(Struct, frozen=True, kw_only=True):
    """One phase of a step: torch's max_memory_allocated and max_memory_reserved."""

    phase: str
    micro_batch: int | None
    peak_bytes: int
    reserved_bytes: int


class StepResult(Struct, frozen=True, kw_only=True):
    """One of the first steps: its peak, the phase that has it, and every phase."""

    step: int
    peak_bytes: int
    peak_phase: str
    phases: list[PhaseResult]


class OutOfMemory(Struct, frozen=True, kw_only=True):
    """Where a run that does not fit runs out of memory; step 0 is start-up."""

    step: int
    phase: str


class MemoryResult(Struct, frozen=True, kw_only=True):
    """The answer: four numbers that are never mixed up, the verdict, and the parts.

    - `allocated_bytes`: the most that tensors take at once in a step, on the busiest rank;
      torch's max_memory_allocated. `startup_bytes` is the same while the model is set up.
    - `reserved_bytes`: what torch reserves for that on a GPU with more memory than it needs;
      max_memory_reserved. `reserved_on_card_bytes` is the same on this card, None where the run
      does not survive on it.
    - `needs_bytes`: the least that torch must be given for start-up and steps to survive.
      `margin_bytes` is what must be added to be sure that they do.
    - `device_bytes`: what nvidia-smi shows: reserved_on_card_bytes (reserved_bytes where that is
      None) and what CUDA takes outside torch, `outside_torch_bytes`.

    The last three come from a replay of torch's allocator, and are None where nothing was
    replayed. The total is needs_bytes, margin_bytes and outside_torch_bytes; where nothing was
    replayed, allocated_bytes and the last. `verdict` is `fits`, `tight` (within the margin), `does
    not fit`, or `may fit` (nothing was replayed, and the tensors fit); `headroom_bytes` is what the
    card has beyond the total, negative where it is short. `host_bytes_per_node` counts the
    libraries of every process. `steps` are the first steps, as the replay has them: optimizer
    states exist from the end of the first. `fails_at` is where a run that does not fit runs out of
    memory. `version` is that of these fields, to which a version only adds.
    """

    total_memory_per_gpu_gb: float
    total_memory_all_gpus_gb: float
    cpu_memory_gb: float
    fits_on_gpu: bool
    verdict: str
    headroom_bytes: int
    memory_utilization_percent: float
    breakdown: MemoryBreakdown
    allocated_bytes: int
    startup_bytes: int | None
    reserved_bytes: int | None
    reserved_on_card_bytes: int | None
    needs_bytes: int | None
    margin_bytes: int | None
    device_bytes: int | None
    outside_torch_bytes: int
    gpu_memory_bytes: int
    host_bytes_per_node: int
    disk_bytes_per_node: int
    peak_phase: str
    peak_instant: str
    num_parameters: int
    trainable_parameters: int
    busiest_stage: int
    stages: list[StageResult]
    timeline: list[dict[str, Any]]
    assumed: list[str]
    warnings: list[str]
    run: dict[str, Any]
    serving: ServingResult | None = None  # where a server has a pool for its cache
    steps: list[StepResult] = []
    fails_at: OutOfMemory | None = None
    version: int = 1

    def __str__(self) -> str:
        """The verdict and the parts in a few lines."""
        return short_text(self)

    def __repr__(self) -> str:
        """The verdict and the total in one line."""
        return one_line(self)

    def _repr_html_(self) -> str:
        """A small table and a bar, for notebooks."""
        return html_table(self)
