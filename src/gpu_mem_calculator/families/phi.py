"""Phi-1.5 and Phi-2 (parallel, biased), Phi-3 and Phi-4 (fused), Phi-3.5-MoE."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..model.arch import Arch, Layer
from ..model.blocks import Attention, Linear, Mlp, Norm
from .blocks import (
    biased_head,
    fused_mlp,
    head_counts,
    head_norms,
    partial_rotary,
    same_windows,
    stacked_moe,
    text,
)
from .config import Config, ConfigError
from .llama import decoder, pre_norms, separate_attention


def _plain_mlp(config: Config, hidden: int) -> Mlp:
    """fc1, activation, fc2, both with a bias."""
    embed, inner = ("embed", hidden), ("ffn", config.size("intermediate_size", default=8192))
    return Mlp(
        inputs=(Linear("fc1", embed, inner, bias=True),),
        output=Linear("fc2", inner, embed, bias=True),
        ffn=inner[1],
        gated=False,
        activation=text(config, "hidden_act", "gelu_new"),
    )


def _phi_attention(config: Config, hidden: int) -> Attention:
    """q, k, v and dense with biases; rotary over half of each head; perhaps layer norms on q, k.

    Those norms have hidden / heads elements, which must then be the head size.
    """
    heads, kv_heads, head_dim = head_counts(config, hidden, heads=32, kv_heads=None)
    normed = config.flag("qk_layernorm", default=False)
    if normed and head_dim * heads != hidden:
        raise ConfigError(
            f"model.config.head_dim={head_dim} must be hidden_size / heads under qk_layernorm; "
            f"try {config.divided(hidden, 'heads', heads)}"
        )
    return separate_attention(
        hidden, heads, kv_heads, head_dim, bias=True, output_bias=True, output="dense",
        norms=head_norms(("q_layernorm", "k_layernorm"), head_dim, "layer") if normed else (),
        rotary_dim=partial_rotary(config, head_dim, 0.5),
        rotary_impl="joined",  # with what is not turned, even where that is nothing
        dropout=config.number("attention_dropout"),
    )  # fmt: skip


def read_phi(data: Mapping[str, Any]) -> Arch:
    """Phi-1, 1.5 and 2 (transformers 5.17 models/phi): one norm feeds attention and MLP alike."""
    config = Config(data)
    hidden = config.size("hidden_size", default=2048)
    attention, embed = _phi_attention(config, hidden), ("embed", hidden)
    layer = Layer(
        kind="dense",
        mixer=attention,
        mlp=_plain_mlp(config, hidden),
        norms=(("pre", Norm("input_layernorm", embed, "layer", bias=True)),),
        parallel=True,
        dropout=config.number("resid_pdrop"),
    )
    tied = config.flag("tie_word_embeddings", default=False)
    vocab = config.size("vocab_size", default=51200)
    return decoder(
        config, "phi", hidden, (layer,) * config.size("num_hidden_layers", default=24),
        vocab=vocab, max_seq_len=2048, tied=False, rotary_dim=attention.rotary_dim,
        final_norm=Norm("model.final_layernorm", embed, "layer", bias=True),
        embedding_dropout=config.number("embd_pdrop"),
        **biased_head(hidden, vocab, tied=tied),
    )  # fmt: skip


def read_phi3(data: Mapping[str, Any]) -> Arch:
    """Phi-3, 3.5 and 4 (transformers 5.17 models/phi3): fused qkv, fused gate and up.

    `embd_pdrop` is in the config but no module of the model uses it.
    """
    config = Config(data)
    hidden = config.size("hidden_size", default=3072)
    heads, kv_heads, head_dim = head_counts(config, hidden, heads=32, kv_heads=None)
    rotary_dim, embed = partial_rotary(config, head_dim, 1.0), ("embed", hidden)
    attention = Attention(
        inputs=(Linear("qkv_proj", embed, ("heads", (heads + 2 * kv_heads) * head_dim)),),
        output=Linear("o_proj", ("heads", heads * head_dim), embed),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        rotary_dim=rotary_dim,
        rotary_impl="joined",
        dropout=config.number("attention_dropout"),
    )
    ffn = config.size("intermediate_size", default=8192)
    layer = Layer(
        kind="dense",
        mixer=attention,
        mlp=fused_mlp(hidden, ffn, activation=text(config, "hidden_act", "silu")),
        norms=pre_norms(hidden),
        dropout=config.number("resid_pdrop"),
    )
    num_layers = config.size("num_hidden_layers", default=32)
    return decoder(
        config, "phi3", hidden, (layer,) * num_layers,
        vocab=32064, max_seq_len=4096, tied=False, rotary_dim=rotary_dim,
        windows=same_windows(config, num_layers, None),
    )  # fmt: skip


def _phimoe_layer(config: Config, hidden: int, attention: Attention) -> Layer:
    """Layer norms with biases around attention and experts."""
    moe = stacked_moe(
        hidden,
        config.size("num_local_experts", default=16),
        config.size("num_experts_per_tok", default=2),
        config.size("intermediate_size", default=6400),
        router="router",
        router_impl="sparsemixer",
        activation=text(config, "hidden_act", "silu"),
        jitter=config.number("input_jitter_noise") > 0,
    )
    names = (("pre", "input_layernorm"), ("pre_mlp", "post_attention_layernorm"))
    norms = tuple((place, Norm(n, ("embed", hidden), "layer", bias=True)) for place, n in names)
    return Layer(kind="moe", mixer=attention, mlp=moe, norms=norms)


def read_phimoe(data: Mapping[str, Any]) -> Arch:
    """Phi-3.5-MoE (transformers 5.17 models/phimoe): layer norms, and biases by switch."""
    config = Config(data)
    hidden = config.size("hidden_size", default=4096)
    heads, kv_heads, head_dim = head_counts(config, hidden, heads=32, kv_heads=8)
    bias = config.flag("attention_bias", default=False)
    attention = separate_attention(
        hidden, heads, kv_heads, head_dim, bias=bias, output_bias=bias,
        rotary_dim=head_dim, dropout=config.number("attention_dropout"),
    )  # fmt: skip
    num_layers = config.size("num_hidden_layers", default=32)
    tied = config.flag("tie_word_embeddings", default=False)
    vocab = config.size("vocab_size", default=32064)
    head_bias = config.flag("lm_head_bias", default=False)
    return decoder(
        config, "phimoe", hidden, (_phimoe_layer(config, hidden, attention),) * num_layers,
        vocab=vocab, max_seq_len=131072, tied=False, rotary_dim=head_dim,
        final_norm=Norm("model.norm", ("embed", hidden), "layer", bias=True),
        windows=same_windows(config, num_layers, None),
        **(biased_head(hidden, vocab, tied=tied) if head_bias else {}),
    )  # fmt: skip


FAMILIES = {"phi": read_phi, "phi3": read_phi3, "phimoe": read_phimoe}
