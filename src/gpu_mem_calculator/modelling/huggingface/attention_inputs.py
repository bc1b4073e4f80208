"""What one attention call is given."""

from __future__ import annotations

from msgspec import Struct

from ...autograd.tape import Tape, Value
from .setting import BlockSetting


class AttentionInputs(Struct, frozen=True, kw_only=True):
    """The sizes of one attention call, and how its family makes it."""

    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    masked: bool = False  # a mask tensor is passed, so flash is out of the question
    own_mask: bool = True  # the mask is boolean: each call makes an additive one of its own
    broadcast: bool = False  # fewer key-value heads are passed, without `enable_gqa` (Falcon-7B)
    dropout: float = 0.0
    sdpa: bool = True
    float_softmax: bool = True
    float_scores: bool = False
    softcap: bool = False
    sinks: bool = False
    in_place: bool = False
    float_bias: bool = False
    float_logits: bool = False
    head_major: bool = False  # q was made by a concatenation, head by head
    cached: bool = False  # k and v come from a cache, head by head

    @property
    def grouped(self) -> bool:
        """Whether several query heads share a key-value head."""
        return self.heads != self.kv_heads


def repeated(
    tape: Tape, setting: BlockSetting, k: Value, v: Value, heads: AttentionInputs
) -> tuple[Value, Value]:
    """Keys and values copied for every query head (repeat_kv), where there are fewer of them.

    A single one is expanded without a copy: its reshape is a view.
    """
    if not heads.grouped:
        return k, v
    rows = setting.key_tokens * heads.heads
    if heads.kv_heads == 1:
        k = tape.split("attn.k_expanded", k, [("attn.k_view", rows * heads.head_dim)])[0]
        v = tape.split("attn.v_expanded", v, [("attn.v_view", rows * heads.value_dim)])[0]
        return k, v
    return (
        tape.op("attn.k_repeated", k, elements=rows * heads.head_dim),
        tape.op("attn.v_repeated", v, elements=rows * heads.value_dim),
    )
