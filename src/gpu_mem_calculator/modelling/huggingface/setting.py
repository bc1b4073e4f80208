"""How one rank runs a block: sizes, widths, and what is trained."""

from __future__ import annotations

from functools import cached_property

from msgspec import Struct

from ...ledger.num import Num
from ...ledger.remember import fields_only_ints
from ...model.adapters import Adapter
from .quirks import LLAMA, Quirks


class BlockSetting(Struct, frozen=True, kw_only=True, cache_hash=True, dict=True):
    """How one rank runs a block. Sizes may be ints, arrays or `Sym`s."""

    batch: Num
    seq: Num
    hidden: Num
    bits: int  # of activations between matmuls
    matmul_bits: int  # of matmuls; differs under autocast
    weight_bits: int
    autocast: bool = False
    half: bool = False  # 16 bits are fp16, for which torch has a softmax of its own
    attention: str = "sdpa"
    cudnn: bool = True  # torch prefers cuDNN's attention on this card
    training: bool = True
    frozen: bool = False  # the base weights take no gradient
    adapter: Adapter | None = None
    quantization: str | None = None
    double_quant: bool = False  # the scales of packed weights are packed, too
    hopper: bool = False  # the card is one
    past: Num = 0  # tokens of a cache that attention reads beside its own
    quirks: Quirks = LLAMA
    decoding: bool = False  # one token per sequence, with a cache
    # Experts stay in grouped matmuls while decoding: _beam_search and _assisted_decoding do not
    # call _optimize_model_for_decode.
    grouped_experts: bool = False

    @cached_property
    def only_ints(self) -> bool:
        """Whether all sizes are plain numbers."""
        return fields_only_ints(self)

    @property
    def tokens(self) -> Num:
        """Tokens of one micro-batch on this rank."""
        return self.batch * self.seq

    @property
    def keys(self) -> Num:
        """Keys that each sequence's tokens attend to."""
        return self.seq if type(self.past) is int and self.past == 0 else self.seq + self.past

    @property
    def key_tokens(self) -> Num:
        """Keys of the whole batch."""
        return self.batch * self.keys
