"""Nemotron-NAS (DeciLM): Llama with parts of each layer changed or left out by a search.

Parameters and cache; its activations are not modelled.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..arch.arch import Arch, Layer
from ..arch.blocks import Attention, Linear, Mlp, Weight
from .attention import separate_attention
from .config import Config, ConfigError, Fields
from .frame import decoder, decoder_layer, stacked
from .mlps import gated_mlp
from .norms import pre_norms


def ffn_width(multiplier: float, hidden: int) -> int:
    """Two thirds of a multiple of the width, up to a multiple of 256."""
    return -(-int(2 * multiplier * hidden / 3) // 256) * 256


def _replacement(block: Config, hidden: int, name: str) -> list[Weight] | None:
    """Weights that replace a block: none, or those of one linear; None where the block stays."""
    if block.flag("no_op"):
        return []
    if block.flag("replace_with_linear"):
        embed = ("embed", hidden)
        return list(Linear(name, embed, embed).weights())
    return None


def _attention(config: Config, block: Config, hidden: int) -> tuple[Attention | None, list[Weight]]:
    """Attention, a linear in its place, or nothing."""
    replacement = _replacement(block, hidden, "self_attn.linear_attn")
    if replacement is not None:
        return None, replacement
    heads = config.size("num_attention_heads")
    kv_heads = config.divided(heads, "heads in a group", block.size("n_heads_in_group"))
    size = config.size("head_dim", default=config.divided(hidden, "heads", heads))
    bias = config.flag("attention_bias")
    return separate_attention(hidden, heads, kv_heads, size, bias=bias, rotary_dim=size), []


def _mlp(config: Config, block: Config, hidden: int) -> tuple[Mlp | None, list[Weight]]:
    """A gated MLP, a linear in its place, or nothing."""
    replacement = _replacement(block, hidden, "mlp.linear_mlp")
    if replacement is not None:
        return None, replacement
    ffn = block.get("intermediate_size")
    if ffn is None:
        ffn = ffn_width(block.number("ffn_mult", default=1.0), hidden)
    width = Config({"intermediate_size": ffn}).size("intermediate_size")
    bias = config.flag("mlp_bias")
    return gated_mlp(hidden, width, bias=bias, activation=config.activation()), []


def nas_layer(config: Config, block: Config, hidden: int) -> Layer:
    """One layer; what is left out leaves its norm out too."""
    attention, beside = _attention(config, block.section("attention"), hidden)
    mlp, more = _mlp(config, block.section("ffn"), hidden)
    kept = (attention is not None or beside, mlp is not None or more)
    norms = tuple(norm for norm, flag in zip(pre_norms(hidden), kept, strict=True) if flag)
    return decoder_layer(hidden, attention, mlp, norms=norms, extra=(*beside, *more))


def read_nas(config: Config) -> Arch:
    """Llama-Nemotron Super and Ultra (modeling_decilm.py of nvidia/Llama-3_3-Nemotron-Super-49B).

    The widths of the MLPs are as vllm 0.11.0 nemotron_nas.py computes them.
    """
    hidden, count = config.size("hidden_size"), config.size("num_hidden_layers")
    blocks = config.per_layer("block_configs", count, []) or [{}] * count
    for block in blocks:
        if not isinstance(block, Mapping):
            raise ConfigError(f"model.config.block_configs holds {block!r}, not an object")
    by_text = {repr(block): Config(block) for block in blocks}
    stack = stacked(map(repr, blocks), lambda text: nas_layer(config, by_text[text], hidden))
    sizes: Fields = {"vocab": 128256, "max_seq_len": 131072, "trains": False}
    return decoder(config, "nemotron-nas", hidden, stack, **sizes)


FAMILIES = {"nemotron-nas": read_nas}
