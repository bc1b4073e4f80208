"""Nemotron-NAS (DeciLM): Llama with parts of each layer changed or left out by a search.

Parameters and cache; its activations are not modelled.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..model.arch import Arch, Layer
from ..model.blocks import Attention, Linear, Mlp, Norm, Weight
from .attention import separate_attention
from .config import Config, ConfigError
from .frame import decoder
from .mlps import gated_mlp


def ffn_width(multiplier: float, hidden: int) -> int:
    """Two thirds of a multiple of the width, up to a multiple of 256."""
    return -(-int(2 * multiplier * hidden / 3) // 256) * 256


def _replacement(block: Config, hidden: int, name: str) -> list[Weight] | None:
    """Weights that replace a block: none, or those of one linear; None where the block stays."""
    if block.flag("no_op", default=False):
        return []
    if block.flag("replace_with_linear", default=False):
        embed = ("embed", hidden)
        return list(Linear(name, embed, embed).weights())
    return None


def _attention(config: Config, block: Config, hidden: int) -> tuple[Attention | None, list[Weight]]:
    """Attention, a linear in its place, or nothing."""
    replacement = _replacement(block, hidden, "self_attn.linear_attn")
    if replacement is not None:
        return None, replacement
    heads = config.size("num_attention_heads")
    group = block.size("n_heads_in_group")
    bias = config.flag("attention_bias", default=False)
    size = config.size("head_dim", default=config.divided(hidden, "heads", heads))
    return separate_attention(
        hidden,
        heads,
        config.divided(heads, "heads in a group", group),
        size,
        bias=bias,
        output_bias=bias,
        rotary_dim=size,
    ), []


def _mlp(config: Config, block: Config, hidden: int) -> tuple[Mlp | None, list[Weight]]:
    """A gated MLP, a linear in its place, or nothing."""
    replacement = _replacement(block, hidden, "mlp.linear_mlp")
    if replacement is not None:
        return None, replacement
    ffn = block.get("intermediate_size")
    if ffn is None:
        ffn = ffn_width(block.number("ffn_mult", default=1.0), hidden)
    width = Config({"intermediate_size": ffn}).size("intermediate_size")
    bias = config.flag("mlp_bias", default=False)
    return gated_mlp(hidden, width, bias=bias, activation=config.text("hidden_act", "silu")), []


def nas_layer(config: Config, block: Config, hidden: int) -> Layer:
    """One layer; what is left out leaves its norm out too."""
    embed = ("embed", hidden)
    attention, beside = _attention(config, block.section("attention"), hidden)
    mlp, more = _mlp(config, block.section("ffn"), hidden)
    norms = []
    if attention is not None or beside:
        norms.append(("pre", Norm("input_layernorm", embed)))
    if mlp is not None or more:
        norms.append(("pre_mlp", Norm("post_attention_layernorm", embed)))
    return Layer(kind="dense", mixer=attention, mlp=mlp, norms=tuple(norms), extra=(*beside, *more))


def read_nas(data: Mapping[str, Any]) -> Arch:
    """Llama-Nemotron Super and Ultra (modeling_decilm.py of nvidia/Llama-3_3-Nemotron-Super-49B).

    The widths of the MLPs are as vllm 0.11.0 nemotron_nas.py computes them.
    """
    config = Config(data)
    hidden = config.size("hidden_size")
    count = config.size("num_hidden_layers")
    by_block: dict[str, Layer] = {}
    stack = []
    for block in config.per_layer("block_configs", count, []) or [{}] * count:
        if not isinstance(block, Mapping):
            raise ConfigError(f"model.config.block_configs holds {block!r}, not an object")
        key = repr(block)
        if key not in by_block:
            by_block[key] = nas_layer(config, Config(block), hidden)
        stack.append(by_block[key])
    return decoder(
        config,
        "nemotron-nas",
        hidden,
        tuple(stack),
        vocab=128256,
        max_seq_len=131072,
        tied=False,
        rotary_dim=0,
        buffers=(),
        trains=False,
    )


FAMILIES = {"nemotron-nas": read_nas}
