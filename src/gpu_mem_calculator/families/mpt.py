"""MPT: ALiBi, no bias anywhere, layer norms without one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..model.arch import Arch, Layer
from .attention import fused_attention
from .config import Config
from .frame import named_decoder
from .mlps import plain_mlp
from .norms import layer_norm


def mpt_layer(config: Config, hidden: int) -> Layer:
    """Attention is eager only; every dropout is `attn_config.attn_pdrop`."""
    heads = config.size("n_heads", "num_attention_heads", default=16)
    dropout = config.section("attn_config").number("attn_pdrop")
    mixer = fused_attention(
        hidden,
        heads,
        heads,
        config.divided(hidden, "heads", heads),
        name="Wqkv",
        output="out_proj",
        alibi=True,
        float_bias=True,
        sdpa=False,
        dropout=dropout,
        residual_dropout=dropout,
        clipped=bool(config.section("attn_config").get("clip_qkv")),
    )
    up, down = "up_proj", "down_proj"
    return Layer(
        kind="dense",
        mixer=mixer,
        mixer_name="attn",
        mlp=plain_mlp(hidden, 4 * hidden, "gelu", up=up, down=down, bias=False, dropout=dropout),
        mlp_name="ffn",
        norms=(
            ("pre", layer_norm("norm_1", hidden, bias=False)),
            ("pre_mlp", layer_norm("norm_2", hidden, bias=False)),
        ),
    )


def read_mpt(data: Mapping[str, Any]) -> Arch:
    """MPT (transformers 5.17 models/mpt).

    That code fixes the MLP at four times the hidden size and always builds the ALiBi bias.
    """
    config = Config(data)
    hidden = config.size("d_model", "hidden_size", default=2048)
    layers = config.size("n_layers", "num_hidden_layers", default=24)
    return named_decoder(
        config,
        "mpt",
        hidden,
        (mpt_layer(config, hidden),) * layers,
        words="transformer.wte",
        blocks="transformer.blocks",
        final_norm=layer_norm("transformer.norm_f", hidden, bias=False),
        vocab=50368,
        max_seq_len=config.size("max_seq_len", default=2048),
        tied=True,
    )


FAMILIES = {"mpt": read_mpt}
