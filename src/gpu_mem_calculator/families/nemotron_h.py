"""Nemotron-H and Nemotron 3: every layer is one of Mamba-2, attention, an MLP or experts.

Parameters and cache; their activations are not modelled.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..model.arch import Arch, Layer
from ..model.blocks import Linear, Mlp, Moe, Norm, StateSpace, Weight
from .attention import head_counts, separate_attention
from .config import Config, ConfigError
from .frame import named_decoder
from .hybrid_layers import LINEAR, mixed_types
from .mamba2 import mamba2_block
from .norms import rms
from .windows import FULL

PATTERN = {"M": LINEAR, "E": "moe", "*": FULL, "-": "mlp"}
KNOWN = tuple(PATTERN.values())


def layer_kinds(config: Config) -> list[str]:
    """`layers_block_type` (`layer_types`), or a letter a layer in `hybrid_override_pattern`."""
    key = "layer_types" if config.get("layer_types") is not None else "layers_block_type"
    pattern = config.get("hybrid_override_pattern")
    words = config.get(key)
    if words is None and pattern is not None:
        if not isinstance(pattern, str) or set(pattern) - set(PATTERN) or not pattern:
            letters = " ".join(PATTERN)
            raise ConfigError(
                f"model.config.hybrid_override_pattern={pattern!r} must be made of {letters}"
            )
        words = [PATTERN[letter] for letter in pattern]
    if words is None:
        words = [LINEAR, "moe", FULL, "mlp"]
    if not isinstance(words, list) or not words:
        raise ConfigError(f"model.config.{key}={words!r} must be a list of layer types")
    return mixed_types(Config({key: words}), key, len(words), (), KNOWN)


def _mamba(config: Config, hidden: int) -> StateSpace:
    heads = config.size("mamba_num_heads", default=128)
    inner = heads * config.size("mamba_head_dim", default=64)
    return mamba2_block(
        config,
        hidden,
        inner,
        heads,
        state=config.size("ssm_state_size", default=128),
        groups=config.size("mamba_n_groups", "n_groups", default=8),
        conv=config.size("mamba_d_conv", "conv_kernel", default=4),
        bias=config.flag("use_bias", default=False),
        conv_bias=config.flag("use_conv_bias", default=True),
        chunk=config.size("mamba_chunk_size", "chunk_size", default=128),
    )


def _plain_mlp(config: Config, hidden: int, ffn: int, prefix: str = "") -> Mlp:
    embed, inner = ("embed", hidden), ("ffn", ffn)
    bias = config.flag("mlp_bias", default=False)
    return Mlp(
        inputs=(Linear(f"{prefix}up_proj", embed, inner, bias),),
        output=Linear(f"{prefix}down_proj", inner, embed, bias),
        ffn=ffn,
        gated=False,
        activation=config.text("mlp_hidden_act", "relu2"),
    )


def _moe(config: Config, hidden: int) -> Moe:
    """Experts without a gate, on a narrower input where `moe_latent_size` is set."""
    experts = config.size("n_routed_experts", default=8)
    ffn = config.size("moe_intermediate_size", default=7688)
    shared = config.size("moe_shared_expert_intermediate_size", default=7688)
    latent = config.count("moe_latent_size")
    embed, expert, inner = ("embed", hidden), ("expert", experts), ("expert_ffn", ffn)
    narrow = ("latent", latent) if latent else embed
    bias = config.flag("mlp_bias", default=False)
    around = (
        (
            Linear("fc1_latent_proj", embed, narrow, bias),
            Linear("fc2_latent_proj", narrow, embed, bias),
        )
        if latent
        else ()
    )
    return Moe(
        router=(
            Weight("gate.weight", (expert, embed)),
            *(weight for linear in around for weight in linear.weights()),
        ),
        experts=(
            Weight("experts.up_proj", (expert, inner, narrow)),
            Weight("experts.down_proj", (expert, narrow, inner)),
        ),
        num_experts=experts,
        top_k=config.size("num_experts_per_tok", default=2),
        ffn=ffn,
        gated=False,
        activation=config.text("mlp_hidden_act", "relu2"),
        shared=_plain_mlp(config, hidden, shared, "shared_experts."),
        router_impl="float_sigmoid",
    )


def _kinds(config: Config, hidden: int, used: set[str]) -> dict[str, Layer]:
    counts = head_counts(config, hidden, heads=32, kv_heads=8, head_dim=128)
    norms = (("pre", Norm("norm", ("embed", hidden))),)
    ffn = config.size("intermediate_size", default=21504)
    builders = {
        FULL: lambda: Layer(
            kind="dense", mixer=separate_attention(hidden, *counts), mixer_name="mixer", norms=norms
        ),
        LINEAR: lambda: Layer(
            kind="mamba", mixer=_mamba(config, hidden), mixer_name="mixer", norms=norms
        ),
        "mlp": lambda: Layer(
            kind="dense", mlp=_plain_mlp(config, hidden, ffn), mlp_name="mixer", norms=norms
        ),
        "moe": lambda: Layer(kind="moe", mlp=_moe(config, hidden), mlp_name="mixer", norms=norms),
    }
    return {kind: builders[kind]() for kind in used}


def read_nemotron_h(data: Mapping[str, Any]) -> Arch:
    """Nemotron-H (transformers 5.17 models/nemotron_h); attention has no positions."""
    config = Config(data)
    hidden = config.size("hidden_size", default=4096)
    kinds = layer_kinds(config)
    by_kind = _kinds(config, hidden, set(kinds))
    return named_decoder(
        config,
        "nemotron_h",
        hidden,
        tuple(by_kind[kind] for kind in kinds),
        vocab=131072,
        words="model.embeddings",
        blocks="model.layers",
        final_norm=rms("model.norm_f", hidden),
        max_seq_len=config.size("max_position_embeddings", default=4096),
        tied=False,
        trains=False,
    )


FAMILIES = {"nemotron_h": read_nemotron_h}
