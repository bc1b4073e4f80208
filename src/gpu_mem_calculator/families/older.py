"""Pieces of the older decoders: fused qkv, a two-matrix MLP, torch's layer norm, buffers."""

from __future__ import annotations

from typing import Any

from ..model.arch import Arch, Buffer, Layer
from ..model.blocks import Attention, Linear, Mlp, Norm, Weight
from .config import Config, ConfigError


def section(config: Config, name: str) -> Config:
    """A config inside the config; empty where it is missing."""
    value = config.get(name)
    if value is not None and not isinstance(value, dict):
        raise ConfigError(f"model.config.{name}={value!r} must be an object")
    return Config(value or {})


def per_layer(config: Config, name: str, layers: int, default: list[Any]) -> list[Any]:
    """A list with one entry a layer, else the default."""
    value = config.get(name)
    if value is None:
        return default
    if not isinstance(value, list | tuple) or len(value) != layers:
        found = f"{len(value)} entries" if isinstance(value, list | tuple) else repr(value)
        raise ConfigError(f"model.config.{name} has {found}; it must list all {layers} layers")
    return list(value)


def fused_attention(
    hidden: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    *,
    name: str,
    output: str,
    bias: bool = False,
    output_bias: bool = False,
    **rest: Any,
) -> Attention:
    """q, k and v from one projection."""
    embed, width = ("embed", hidden), heads * head_dim
    return Attention(
        inputs=(Linear(name, embed, ("heads", width + 2 * kv_heads * head_dim), bias),),
        output=Linear(output, ("heads", width), embed, output_bias),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        **rest,
    )


def plain_mlp(
    hidden: int,
    ffn: int,
    activation: str,
    *,
    up: str,
    down: str,
    bias: bool = True,
    dropout: float = 0.0,
) -> Mlp:
    """Up, activation, down."""
    embed, inner = ("embed", hidden), ("ffn", ffn)
    return Mlp(
        inputs=(Linear(up, embed, inner, bias),),
        output=Linear(down, inner, embed, bias),
        ffn=ffn,
        gated=False,
        activation=activation,
        dropout=dropout,
    )


def layer_norm(name: str, hidden: int, *, bias: bool = True, affine: bool = True) -> Norm:
    """torch.nn.LayerNorm over the hidden size."""
    return Norm(name, ("embed", hidden), "layer", bias=bias and affine, affine=affine)


def layer_norm_pair(hidden: int, first: str, second: str) -> tuple[tuple[str, Norm], ...]:
    """Layer norms with bias, before the mixer and before the MLP."""
    return (("pre", layer_norm(first, hidden)), ("pre_mlp", layer_norm(second, hidden)))


def layer_buffers(
    prefix: str, name: str, layers: int, shape: tuple[int, ...], bits: int = 32
) -> tuple[Buffer, ...]:
    """The same buffer in every layer."""
    return tuple(Buffer(f"{prefix}.{i}.{name}", shape, bits) for i in range(layers))


def early_decoder(
    config: Config,
    family: str,
    hidden: int,
    layers: tuple[Layer, ...],
    *,
    words: str,
    blocks: str,
    norm: Norm,
    vocab: int,
    max_seq_len: int,
    tied: bool,
    **rest: Any,
) -> Arch:
    """The frame of the older decoders, which name its parts each in their own way."""
    vocab = config.size("vocab_size", default=vocab)
    tied = config.flag("tie_word_embeddings", default=tied)
    embed, rows = ("embed", hidden), ("vocab", vocab)
    values: dict[str, Any] = {
        "embedding": (Weight(f"{words}.weight", (rows, embed)),),
        "head": None if tied else Linear("lm_head", embed, rows),
    }
    return Arch(
        family=family,
        hidden=hidden,
        vocab=vocab,
        max_seq_len=max_seq_len,
        layers=layers,
        layer_prefix=blocks,
        final_norm=norm,
        tied=tied,
        **values | rest,
    )
