"""StableLM (and OLMo 1): Llama with layer norms. Parameters and cache; no activations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from ..model.arch import Arch, Layer
from ..model.blocks import Attention, Norm, Weight
from .blocks import head_counts, partial_rotary, text
from .config import Config
from .llama import decoder, gated_mlp, separate_attention
from .older import layer_norm, layer_norm_pair


def _head_norms(attention: Attention) -> tuple[Weight, ...]:
    """`qk_layernorm`: a norm of its own for each head."""
    counts = {"q_layernorm": attention.heads, "k_layernorm": attention.kv_heads}
    return tuple(
        Weight(f"{name}.norms.{i}.weight", (("head_dim", attention.head_dim),))
        for name, count in counts.items()
        for i in range(count)
    )


def read_stablelm(data: Mapping[str, Any]) -> Arch:
    """StableLM 2 and 3B (transformers 5.17 models/stablelm)."""
    config = Config(data)
    hidden = config.size("hidden_size", default=2560)
    counts = head_counts(config, hidden, heads=32, kv_heads=32)
    attention = separate_attention(
        hidden, *counts, bias=config.flag("use_qkv_bias", default=False),
        rotary_dim=partial_rotary(config, counts[2], 0.25),
    )  # fmt: skip
    if config.flag("qk_layernorm", default=False):
        attention = replace(attention, extra=_head_norms(attention))
    ffn = config.size("intermediate_size", default=6912)
    parallel = config.flag("use_parallel_residual", default=False)
    norms = layer_norm_pair(hidden, "input_layernorm", "post_attention_layernorm")
    layer = Layer(
        kind="dense",
        mixer=attention,
        mlp=gated_mlp(hidden, ffn, activation=text(config, "hidden_act", "silu")),
        norms=norms[:1] if parallel else norms,
        parallel=parallel,
    )
    return decoder(
        config, "stablelm", hidden, (layer,) * config.size("num_hidden_layers", default=32),
        vocab=50304, max_seq_len=4096, tied=False, rotary_dim=attention.rotary_dim,
        final_norm=layer_norm("model.norm", hidden), trains=False,
    )  # fmt: skip


def read_olmo(data: Mapping[str, Any]) -> Arch:
    """OLMo 1 (transformers 5.17 models/olmo): norms without weights."""
    config = Config(data)
    hidden = config.size("hidden_size", default=4096)
    counts = head_counts(config, hidden, heads=32, kv_heads=None)
    bias = config.flag("attention_bias", default=False)
    ffn = config.size("intermediate_size", default=11008)
    bare = Norm("norm", ("embed", hidden), "layer", affine=False)
    layer = Layer(
        kind="dense",
        mixer=separate_attention(hidden, *counts, bias=bias, output_bias=bias,
                                 rotary_dim=counts[2]),
        mlp=gated_mlp(hidden, ffn, activation=text(config, "hidden_act", "silu")),
        norms=(("pre", bare), ("pre_mlp", bare)),
    )  # fmt: skip
    return decoder(
        config, "olmo", hidden, (layer,) * config.size("num_hidden_layers", default=32),
        vocab=50304, max_seq_len=2048, tied=False, rotary_dim=counts[2], final_norm=None,
        trains=False,
    )  # fmt: skip


FAMILIES = {"stablelm": read_stablelm, "olmo": read_olmo}
