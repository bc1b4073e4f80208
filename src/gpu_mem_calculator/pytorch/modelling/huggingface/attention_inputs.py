"""The inputs of one attention call, and the code path its family takes."""

from __future__ import annotations

from msgspec import Struct

from ...autograd.tape import Tape, Value
from .setting import BlockSetting


class AttentionInputs(Struct, frozen=True, kw_only=True):
    """The sizes of one attention call, and the code path its family takes.

    - heads, kv_heads: query heads and key-value heads; head_dim, value_dim: elements of one head
    - masked: a mask tensor is passed, which rules out FlashAttention
    - own_mask: that mask is boolean, and each call makes an additive one from it
    - broadcast: fewer key-value heads are passed, without `enable_gqa` (Falcon-7B)
    - sdpa: the family has a path to scaled_dot_product_attention
    - head_major: q is stored head by head, because a concatenation made it
    - cached: k and v come from a cache, stored head by head

    In eager attention:
    - float_softmax: the softmax is in fp32
    - float_scores: q and k are cast to fp32 first
    - float_bias: the bias is in fp32, and so are the scores after it
    - float_logits: the scores are in fp32 while bias and mask are added (Falcon with ALiBi)
    - in_place: the scale costs no new tensor
    - softcap, sinks: scores are capped by tanh; a learnt logit per head joins the softmax
    """

    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    masked: bool = False
    own_mask: bool = True
    broadcast: bool = False
    dropout: float = 0.0
    sdpa: bool = True
    float_softmax: bool = True
    float_scores: bool = False
    softcap: bool = False
    sinks: bool = False
    in_place: bool = False
    float_bias: bool = False
    float_logits: bool = False
    head_major: bool = False
    cached: bool = False

    @property
    def grouped(self) -> bool:
        """Whether several query heads share a key-value head."""
        return self.heads != self.kv_heads


def repeat_keys_and_values(
    tape: Tape, setting: BlockSetting, k: Value, v: Value, heads: AttentionInputs
) -> tuple[Value, Value]:
    """k and v copied for every query head (repeat_kv), where key-value heads are fewer.

    A single key-value head is expanded without a copy: its reshape is a view.
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
