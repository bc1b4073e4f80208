"""Nemotron-H and Nemotron 3: every layer is one of Mamba-2, attention, an MLP or experts.

Parameters and cache; their activations are not modelled.
"""

from __future__ import annotations

from ..arch.arch import Arch, Layer
from ..arch.blocks import Linear, Mlp, Moe, StateSpace, Weight
from .attention import head_counts, separate_attention
from .config import Config, ConfigError, Fields
from .frame import decoder, decoder_layer, stacked
from .mamba import mamba_layer
from .mamba2 import Mamba2Keys, mamba2_block
from .mlps import plain_mlp
from .norms import rms
from .windows import FULL, LINEAR, mixed_types

PATTERN = {"M": LINEAR, "E": "moe", "*": FULL, "-": "mlp"}
KNOWN = tuple(PATTERN.values())
MAMBA2 = Mamba2Keys(
    *(("ssm_state_size", 128), ("mamba_n_groups n_groups", 8), ("mamba_d_conv conv_kernel", 4)),
    chunk=("mamba_chunk_size chunk_size", 128),
)


def layer_kinds(config: Config) -> list[str]:
    """`layers_block_type` (`layer_types`), or a letter a layer in `hybrid_override_pattern`."""
    key = "layer_types" if config.get("layer_types") is not None else "layers_block_type"
    pattern = config.get("hybrid_override_pattern")
    words = config.get(key)
    if words is None and pattern is not None:
        if not isinstance(pattern, str) or set(pattern) - set(PATTERN) or not pattern:
            rule = f"must consist of {' '.join(PATTERN)}"
            raise ConfigError(f"model.config.hybrid_override_pattern={pattern!r} {rule}")
        words = [PATTERN[letter] for letter in pattern]
    if words is None:
        words = [LINEAR, "moe", FULL, "mlp"]
    if not isinstance(words, list) or not words:
        raise ConfigError(f"model.config.{key}={words!r} must be a list of layer types")
    return mixed_types(Config({key: words}), key, len(words), (), KNOWN)


def _mamba(config: Config, hidden: int) -> StateSpace:
    heads = config.size("mamba_num_heads", default=128)
    inner = heads * config.size("mamba_head_dim", default=64)
    return mamba2_block(config, hidden, inner, heads, MAMBA2)


def _plain_mlp(config: Config, hidden: int, ffn: int, prefix: str = "") -> Mlp:
    names = (f"{prefix}up_proj", f"{prefix}down_proj")
    activation = config.text("mlp_hidden_act", "relu2")
    return plain_mlp(hidden, ffn, activation, names, bias=config.flag("mlp_bias"))


def _moe(config: Config, hidden: int) -> Moe:
    """Experts without a gate, on a narrower input where `moe_latent_size` is set."""
    experts = config.size("n_routed_experts", default=8)
    ffn = config.size("moe_intermediate_size", default=7688)
    shared = config.size("moe_shared_expert_intermediate_size", default=7688)
    latent = config.count("moe_latent_size")
    embed, expert, inner = ("embed", hidden), ("expert", experts), ("expert_ffn", ffn)
    narrow = ("latent", latent) if latent else embed
    bias, linears = config.flag("mlp_bias"), {}
    if latent:
        linears = {"fc1_latent_proj": (embed, narrow), "fc2_latent_proj": (narrow, embed)}
    around = [w for n, dims in linears.items() for w in Linear(n, *dims, bias).weights()]
    return Moe(
        router=(Weight("gate.weight", (expert, embed)), *around),
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


def _layer(config: Config, hidden: int, kind: str) -> Layer:
    """A norm and one block, which is called the mixer whatever it is."""
    norms, ffn = (("pre", rms("norm", hidden)),), config.ffn(21504)
    counts = head_counts(config, hidden, heads=32, kv_heads=8, head_dim=128)
    if kind in ("mlp", "moe"):
        mlp = _moe(config, hidden) if kind == "moe" else _plain_mlp(config, hidden, ffn)
        return decoder_layer(hidden, None, mlp, mlp_name="mixer", norms=norms)
    if kind == LINEAR:
        return mamba_layer(_mamba(config, hidden), hidden)
    attention = separate_attention(hidden, *counts)
    return decoder_layer(hidden, attention, None, mixer_name="mixer", norms=norms)


def read_nemotron_h(config: Config) -> Arch:
    """Nemotron-H (transformers 5.17 models/nemotron_h); attention has no positions."""
    hidden = config.hidden(4096)
    stack = stacked(layer_kinds(config), lambda kind: _layer(config, hidden, kind))
    sizes: Fields = {"vocab": 131072, "max_seq_len": 4096, "trains": False}
    norm, words = rms("model.norm_f", hidden), "model.embeddings"
    return decoder(config, "nemotron_h", hidden, stack, **sizes, final_norm=norm, words=words)


FAMILIES = {"nemotron_h": read_nemotron_h}
