"""Baichuan 1 and 2, whose code is published with the weights: one fused W_pack for q, k, v.

The 7B models are rotary, the 13B ones ALiBi, under the same model_type. The rule that tells them
apart is vLLM's (model_executor/models/baichuan.py): the class name BaiChuanForCausalLM, or a
hidden size of 4096, is rotary.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..model.arch import Arch, Layer
from .attention import fused_attention
from .config import Config
from .frame import decoder
from .mlps import gated_mlp
from .norms import pre_norms


def is_rotary(config: Config, hidden: int) -> bool:
    """Rotary positions; else ALiBi."""
    names = config.get("architectures")
    return hidden == 4096 or (isinstance(names, list) and "BaiChuanForCausalLM" in names)


def baichuan_layer(config: Config, hidden: int, heads: int) -> Layer:
    """A Llama layer with one projection for q, k and v."""
    head_dim, rotary = hidden // heads, is_rotary(config, hidden)
    return Layer(
        kind="dense",
        mixer=fused_attention(
            hidden,
            heads,
            heads,
            head_dim,
            name="W_pack",
            output="o_proj",
            rotary_dim=head_dim if rotary else 0,
            alibi=not rotary,
        ),
        mlp=gated_mlp(
            hidden,
            config.size("intermediate_size", default=11008),
            activation=config.text("hidden_act", "silu"),
        ),
        norms=pre_norms(hidden),
    )


def read_baichuan(data: Mapping[str, Any]) -> Arch:
    """Baichuan (modeling_baichuan.py beside the published weights), defaults of Baichuan2-7B.

    The tables that code makes for rotary and ALiBi are not listed as buffers.
    """
    config = Config(data)
    hidden = config.size("hidden_size", default=4096)
    heads = config.size("num_attention_heads", default=32)
    head_dim = config.divided(hidden, "heads", heads)
    layers = (baichuan_layer(config, hidden, heads),) * config.size("num_hidden_layers", default=32)
    positions = config.size("model_max_length", default=4096)
    return decoder(
        config,
        "baichuan",
        hidden,
        layers,
        vocab=125696,
        max_seq_len=positions,
        tied=False,
        rotary_dim=head_dim,
        buffers=(),
    )


FAMILIES = {"baichuan": read_baichuan}
