"""One run with every choice made and every size known, from which engines build a ledger.

Choices (engine, precision, recompute, optimizer) are plain values and may be tested with `if`;
numbers (mesh, batch, sequence, stage) may be arrays or `Sym`s, on which code must not branch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from .recompute import EVERYTHING, NONE, RecomputeRule

if TYPE_CHECKING:
    from ..ledger.mesh import Mesh
    from ..ledger.num import Num
    from ..models.arch.adapters import Adapter
    from ..models.arch.arch import Arch
    from ..models.arch.blocks import Weight
    from .evaluation import Evaluation, Generates
    from .record import ModuleRecord
    from .rollout import Rollout

Options = Mapping[str, Any]
# A tensor of a checkpoint: name, bytes, and its elements where a server casts it to its dtype.
StoredTensor = tuple[str, int, int]
DEFAULT_OPTIMIZER = "adamw"
# What is saved, where it is not as the engine does: the whole model on rank 0's host, or on each
# GPU; each rank's shards, as they are, by way of the host, or staged while training goes on.
FULL_DICT, FULL_DICT_ON_GPUS = "full_state_dict", "full_state_dict_on_gpus"
SHARDED, SHARDED_ON_HOST, ASYNC = "sharded", "sharded_on_host", "async"
# Where a checkpoint is loaded at resuming: as the tool does, or where torch.load is told to.
AS_TOOL, ON_HOST, ON_GPU, ON_FIRST_GPU = "as_tool", "cpu", "gpu", "first_gpu"
# The first rank of a node reads the weights alone, or the others fill theirs with zeros as well.
READS, ZEROS = "first_rank", "first_rank_and_zeros"
# Reference models: a copy, the base model without its adapters, log-probabilities made before.
COPY, BASE, PRECOMPUTED = "copy", "base", "precomputed"


class Precision(Struct, frozen=True):
    """Bits of the weights that layers read, and of activations between matmuls (`compute`)."""

    weights: int
    compute: int
    autocast: bool = False


class Run(Struct, frozen=True, kw_only=True):
    """Everything that an engine's ledger depends on; sizes are of one rank."""

    arch: Arch
    mesh: Mesh
    batch: Num  # sequences of a micro-batch
    seq: Num  # tokens of a sequence, or of the prompt
    micro_batches: Num  # of a step: gradient accumulation, or the pipeline's
    precision: str
    autocast: bool = False
    autocast_cache: bool = True  # autocast caches the casts of weights
    optimizer: str = DEFAULT_OPTIMIZER
    implementation: str = ""  # foreach, fused, forloop; empty: the engine's default
    embedding_states_32bit: bool = False  # where an optimizer's other states have 8 bits
    clipping: bool = True
    evaluation: Evaluation | None = None
    generates: Generates | None = None
    saving: str = ""  # FULL_DICT and the others; "": as the engine does
    resuming: str = ""  # AS_TOOL and the others; "": it begins anew
    ema: str = ""  # where an averaged copy of the weights is: gpu, cpu; "": there is none
    zero_grad: str = "after_step"  # or before_forward, before_backward: when gradients are freed
    recompute: str = NONE  # a policy of recompute.py
    recompute_quarters: int = 4  # quarters of the layers that full recompute applies to
    rule: RecomputeRule = EVERYTHING  # which layers, operations or modules
    reentrant: bool = False
    attention: str = "sdpa"
    use_cache: bool = False  # training's forward makes a KV cache, which nothing reads
    loss: str = "full"  # how it is computed, by the name in the run file
    loss_chunk: int = 0  # vocabulary entries of a tile of the chunked loss
    labelled: Num | None = None  # tokens of a sequence with a label; None: all but the first
    documents: int = 1  # of a sequence; attention is masked between them
    padded: bool = False  # shorter sequences of a batch are padded, and attention gets a mask
    disable_dropout: bool = False  # dropout modules are off, in `arch` already
    reference: str = ""  # a reference model: COPY, BASE, PRECOMPUTED; "": none
    label_smoothing: float = 0.0
    compile: str = ""  # the mode of torch.compile; "": the model is not compiled
    liger: tuple[str, ...] = ()  # Liger's kernels in the place of transformers' code
    adapter: Adapter | None = None
    quantization: str | None = None
    double_quant: bool = True
    upcast_unquantized: bool = False
    upcast_at_startup: bool = False  # the same, and cast back before the first step
    nf4_compute_bits: int = 16  # of a 4-bit projection's matmul
    from_pretrained: bool = False  # transformers loads the weights onto the GPU
    stored_bits: int = 16  # of a weight in the checkpoint
    packed_experts: bool = False  # experts in the checkpoint are MXFP4, and unpacked to be trained
    load_dtype: str = ""  # fp32, bf16, fp16: that from_pretrained is asked for; "": the usual one
    data_workers: int = 0  # processes of a rank's data loader
    loading: str = ""  # READS, ZEROS: which ranks of a node read; "": each does
    int8_threshold: float = 0.0  # larger inputs are outliers; 0: int8 does not search for them
    int8_outliers: float = 0.0  # share of the MLPs' inner columns that have one
    freeze_vision_tower: bool = False
    options: Options = {}
    stage: Num = 0  # the pipeline stage of this rank
    virtual_stages: Num = 1
    stage_counts: tuple[tuple[int, ...], ...] = ()  # layers of unequal stages, chunk by chunk
    ends_counted: tuple[int, int] = (0, 0)  # whether embedding, loss count as a layer of stages
    micro_batch_group: int = 0  # passes of a chunk before the next one's; 0: one for each stage
    sequence_parallel: bool = False
    gpus_per_node: int = 8
    num_nodes: int = 1
    compute_capability: str = "9.0"
    multiprocessors: int = 132
    cublas_workspace: int | None = None  # bytes, of CUBLAS_WORKSPACE_CONFIG; None: the card's own
    card: str = ""  # the title of the card that the run file names; "": it names none
    runtime: str = "cuda"  # the software of its cards: cuda, rocm, xpu, gaudi, tpu
    unrolled: bool = False  # one entry for every layer, for the allocation stream
    parameters_given: int | None = None  # a parameter count that overrides the architecture's
    new_tokens: Num | None = None  # generated after a prompt of `seq` tokens; None: a training run
    card_bytes: int = 0  # a GPU's memory as the driver reports it
    smi_bytes: int = 0  # its total in nvidia-smi
    free_bytes: int = 0  # its free memory before the run starts
    used_bytes: int = 0  # what other processes hold of it, where the run file says it
    quantized: Mapping[str, Any] | None = None  # the model's quantization_config
    stored: tuple[StoredTensor, ...] = ()  # the checkpoint's tensors
    stored_form: str = ""  # safetensors or gguf, where the tensors are known
    record: ModuleRecord | None = None  # of a module whose architecture is not known
    rollout: Rollout | None = None  # a generation before the micro-batches that train on it
    draft: Arch | None = None  # the smaller model of speculative decoding

    @property
    def frozen(self) -> bool:
        """Whether the base model's weights take no gradient: adapters are trained."""
        return self.adapter is not None

    @property
    def gradients_in_forward(self) -> bool:
        """Whether the last step's gradients are alive in the first forward of a step."""
        return self.zero_grad == "before_backward"

    @property
    def trained_tower(self) -> tuple[Weight, ...]:
        """The weights of the vision tower that take a gradient."""
        return () if self.frozen or self.freeze_vision_tower else self.arch.tower

    @property
    def generated(self) -> Num:
        """Tokens generated after each prompt; 0 in a training run."""
        return 0 if self.new_tokens is None else self.new_tokens

    def scaled(self, elements: Num) -> Num:
        """A size computed from dimensions, scaled to a parameter count that overrides the
        architecture's.

        Sizes computed from `Weight.numel` are scaled already, where the architecture is.
        """
        if self.parameters_given is None:
            return elements
        return elements * self.parameters_given // self.arch.own_parameters
