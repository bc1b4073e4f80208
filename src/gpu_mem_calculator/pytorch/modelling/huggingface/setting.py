"""How one rank runs a block: sizes, dtypes, kernels, and what is trained."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from msgspec import Struct

from ....ledger.num import Num
from ....ledger.remember import fields_only_ints
from ....models.arch.adapters import Adapter
from .liger import NO_LIGER, LigerKernels
from .quirks import LLAMA, Quirks

if TYPE_CHECKING:
    from .losses import LossKernel


class BlockSetting(Struct, frozen=True, kw_only=True, cache_hash=True, dict=True):
    """How one rank runs a block. Sizes may be ints, arrays or `Sym`s.

    - batch: sequences of a micro-batch; seq: tokens of one sequence; hidden: the model's width
    - bits: of activations between matmuls; matmul_bits: of matmuls, which differ under autocast;
      weight_bits: of weights
    - autocast_cache: autocast keeps the casts of weights until forward ends
    - half: 16 bits are fp16, for which torch has a separate softmax
    - attention: eager, sdpa, flash_attention_2 or flash_attention_3
    - cudnn: torch prefers cuDNN's attention on this card; flash: it runs FlashAttention
    - hopper: the card is a Hopper
    - training: there is a backward; frozen: the base weights take no gradient
    - adapter: LoRA or DoRA, if there is one
    - quantization: nf4, int8 or None; double_quant: the scales of packed weights are packed, too
    - nf4_bits: of the matmuls of 4-bit projections; packed_bits: of the weights they were packed
      from
    - bnb_adapters: PEFT has its own layers for bitsandbytes, as it knows that the base is quantized
    - int8_threshold: whether int8 searches for outliers; int8_outliers: the share of the columns
      of an MLP's inner activations that have one
    - past: tokens of a cache that attention reads besides the new ones
    - use_cache: a forward pass of training makes a KV cache
    - decoding: one token per sequence, with a cache
    - own_linear: torch's linear is replaced by DeepSpeed's (deepspeed 0.19.8 zero/linear.py
      LinearFunctionForZeroStage3), which makes the input's gradient first, and no view
    - liger: Liger's kernels; multiprocessors: of the card, each of which sums a part of a norm's
      gradient there
    - loss: its kernel, None where only blocks run; loss_chunk: vocabulary entries of a tile;
      smoothed: the labels are smoothed; labelled: tokens of a sequence with a label, where not all
      but the first
    - compiled: the model runs as torch.compile's kernels
    - grouped_experts: experts stay in grouped matmuls while decoding (_beam_search and
      _assisted_decoding do not call _optimize_model_for_decode)
    """

    batch: Num
    seq: Num
    hidden: Num
    bits: int
    matmul_bits: int
    weight_bits: int
    autocast: bool = False
    autocast_cache: bool = True
    half: bool = False
    attention: str = "sdpa"
    cudnn: bool = True
    flash: bool = True
    training: bool = True
    frozen: bool = False
    adapter: Adapter | None = None
    quantization: str | None = None
    double_quant: bool = False
    nf4_bits: int = 16
    packed_bits: int = 16
    bnb_adapters: bool = False
    int8_threshold: bool = False
    int8_outliers: float = 0.0
    hopper: bool = False
    past: Num = 0
    quirks: Quirks = LLAMA
    use_cache: bool = False
    decoding: bool = False
    own_linear: bool = False
    grouped_experts: bool = False
    liger: LigerKernels = NO_LIGER
    multiprocessors: int = 132
    loss: LossKernel | None = None
    loss_chunk: int = 0
    smoothed: bool = False
    compiled: bool = False
    labelled: Num | None = None

    @cached_property
    def only_ints(self) -> bool:
        """Whether all sizes are ints: no array, no `Sym`."""
        return fields_only_ints(self)

    @property
    def tokens(self) -> Num:
        """Tokens of one micro-batch on this rank."""
        return self.batch * self.seq

    @property
    def labels(self) -> Num:
        """Tokens of one micro-batch that have a label."""
        return self.batch * (self.seq - 1 if self.labelled is None else self.labelled)

    @property
    def keys(self) -> Num:
        """Keys that each sequence's tokens attend to."""
        return self.seq if type(self.past) is int and self.past == 0 else self.seq + self.past

    @property
    def key_tokens(self) -> Num:
        """Keys of the whole micro-batch."""
        return self.batch * self.keys
