"""Baichuan 1 and 2, whose code is published with the weights: one fused W_pack for q, k, v.

The 7B models are rotary, the 13B ones ALiBi, under the same model_type. The rule that tells them
apart is vLLM's (model_executor/models/baichuan.py): the class name BaiChuanForCausalLM, or a
hidden size of 4096, is rotary.
"""

from __future__ import annotations

from ..arch.arch import Arch, Layer
from .attention import fused_attention
from .config import Config, Fields
from .frame import decoder, decoder_layer
from .mlps import gated_mlp


def is_rotary(config: Config, hidden: int) -> bool:
    """Rotary positions; else ALiBi."""
    names = config.get("architectures")
    return hidden == 4096 or (isinstance(names, list) and "BaiChuanForCausalLM" in names)


def baichuan_layer(config: Config, hidden: int, heads: int) -> Layer:
    """A Llama layer with one projection for q, k and v."""
    head_dim, rotary = hidden // heads, is_rotary(config, hidden)
    positions: Fields = {"rotary_dim": head_dim if rotary else 0, "alibi": not rotary}
    names: Fields = {"name": "W_pack", "output": "o_proj"}
    attention = fused_attention(hidden, heads, heads, head_dim, **names, **positions)
    mlp = gated_mlp(hidden, config.ffn(11008), activation=config.activation())
    return decoder_layer(hidden, attention, mlp)


def read_baichuan(config: Config) -> Arch:
    """Baichuan (modeling_baichuan.py beside the published weights), defaults of Baichuan2-7B.

    The tables that code makes for rotary and ALiBi are not listed as buffers.
    """
    hidden, heads = config.hidden(4096), config.size("num_attention_heads", default=32)
    config.divided(hidden, "heads", heads)
    layers = (baichuan_layer(config, hidden, heads),) * config.layers(32)
    positions = config.size("model_max_length", default=4096)
    return decoder(config, "baichuan", hidden, layers, vocab=125696, max_seq_len=positions)


FAMILIES = {"baichuan": read_baichuan}
