"""One run, resolved: every choice made, every size known. What engines turn into a ledger.

Structural choices (engine, precision, recompute, optimizer) are plain values and may be tested
with `if`; numbers (mesh, batch, sequence, stage) may be arrays or `Sym`s and only flow.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from ..ledger.mesh import Mesh
from ..ledger.num import Num
from ..model.adapters import Adapter
from ..model.arch import Arch
from .record import ModuleRecord

Options = Mapping[str, Any]
# A checkpoint's tensor: name, bytes, and its elements where a server casts it to its own dtype.
StoredTensor = tuple[str, int, int]


class Precision(Struct, frozen=True):
    """Bits of the weights that the layers see, and of the arithmetic between matmuls."""

    weights: int
    compute: int
    autocast: bool = False


class Run(Struct, frozen=True, kw_only=True):
    """Everything an engine needs to know."""

    arch: Arch
    mesh: Mesh
    batch: Num  # micro-batch of one rank
    seq: Num
    micro_batches: Num  # per step: gradient accumulation, or the pipeline's micro-batches
    precision: str
    autocast: bool = False
    optimizer: str = "adamw"
    implementation: str = ""  # foreach, fused, forloop; empty: the engine's own
    clipping: bool = True
    recompute: str = "none"  # none, selective, full
    recompute_quarters: int = 4  # full recompute on this many quarters of the layers
    reentrant: bool = False
    attention: str = "sdpa"
    adapter: Adapter | None = None
    quantization: str | None = None
    double_quant: bool = True
    upcast_unquantized: bool = False
    options: Options = {}
    stage: Num = 0  # which pipeline stage this rank belongs to
    virtual_stages: Num = 1
    sequence_parallel: bool = False
    gpus_per_node: int = 8
    num_nodes: int = 1
    compute_capability: str = "9.0"
    multiprocessors: int = 132
    unrolled: bool = False  # every layer by itself, for a stream of allocations
    parameters_given: int | None = None  # a published count that wins over the architecture's
    new_tokens: Num = None  # generated behind a prompt of `seq` tokens; None: a training run
    card_bytes: int = 0  # what the driver reports of a card
    smi_bytes: int = 0  # nvidia-smi's total of it
    free_bytes: int = 0  # what is free of it before the run starts
    quantized: Mapping[str, Any] | None = None  # the model's own quantization_config
    stored: tuple[StoredTensor, ...] = ()  # the checkpoint's own tensors
    stored_form: str = ""  # safetensors or gguf, where they are known
    record: ModuleRecord | None = None  # of a module whose architecture is not known
    draft: Arch | None = None  # a small model that speculates for the large one

    @property
    def frozen(self) -> bool:
        """Whether the base model takes no gradient."""
        return self.adapter is not None

    def scaled(self, elements: Num) -> Num:
        """A size that was made from dimensions, in proportion to the parameters given.

        Sizes made from `Weight.numel` are in proportion already, where the architecture is scaled.
        """
        if self.parameters_given is None:
            return elements
        return elements * self.parameters_given // self.arch.own_parameters
