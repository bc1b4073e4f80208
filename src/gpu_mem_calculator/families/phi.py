"""Phi-1.5 and Phi-2 (parallel, biased), Phi-3 and Phi-4 (fused), Phi-3.5-MoE."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..model.arch import Arch, Layer
from ..model.blocks import Attention, Moe
from .attention import fused_attention, head_counts, head_norms, partial_rotary, separate_attention
from .config import Config, ConfigError
from .frame import biased_head, decoder
from .llama_like import Fields, LlamaLike, readers
from .mlps import fused_mlp, plain_mlp, routed_moe
from .norms import layer_norm, pre_norms
from .windows import same, same_windows


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
        hidden,
        heads,
        kv_heads,
        head_dim,
        bias=True,
        output_bias=True,
        output="dense",
        norms=head_norms(("q_layernorm", "k_layernorm"), head_dim, "layer") if normed else (),
        rotary_dim=partial_rotary(config, head_dim, 0.5),
        rotary_impl="joined",  # with what is not turned, even where that is nothing
        dropout=config.number("attention_dropout"),
    )


def read_phi(data: Mapping[str, Any]) -> Arch:
    """Phi-1, 1.5 and 2 (transformers 5.17 models/phi): one norm feeds attention and MLP alike."""
    config = Config(data)
    hidden = config.size("hidden_size", default=2048)
    attention = _phi_attention(config, hidden)
    ffn = config.size("intermediate_size", default=8192)
    layer = Layer(
        kind="dense",
        mixer=attention,
        mlp=plain_mlp(hidden, ffn, config.text("hidden_act", "gelu_new"), up="fc1", down="fc2"),
        norms=(("pre", layer_norm("input_layernorm", hidden)),),
        parallel=True,
        dropout=config.number("resid_pdrop"),
    )
    tied = config.flag("tie_word_embeddings", default=False)
    vocab = config.size("vocab_size", default=51200)
    return decoder(
        config,
        "phi",
        hidden,
        (layer,) * config.size("num_hidden_layers", default=24),
        vocab=vocab,
        max_seq_len=2048,
        tied=False,
        rotary_dim=attention.rotary_dim,
        final_norm=layer_norm("model.final_layernorm", hidden),
        embedding_dropout=config.number("embd_pdrop"),
        **biased_head(hidden, vocab, tied=tied),
    )


def read_phi3(data: Mapping[str, Any]) -> Arch:
    """Phi-3, 3.5 and 4 (transformers 5.17 models/phi3): fused qkv, fused gate and up.

    `embd_pdrop` is in the config but no module of the model uses it.
    """
    config = Config(data)
    hidden = config.size("hidden_size", default=3072)
    heads, kv_heads, head_dim = head_counts(config, hidden, heads=32, kv_heads=None)
    rotary_dim = partial_rotary(config, head_dim, 1.0)
    attention = fused_attention(
        hidden,
        heads,
        kv_heads,
        head_dim,
        name="qkv_proj",
        output="o_proj",
        rotary_dim=rotary_dim,
        rotary_impl="joined",
        dropout=config.number("attention_dropout"),
    )
    ffn = config.size("intermediate_size", default=8192)
    layer = Layer(
        kind="dense",
        mixer=attention,
        mlp=fused_mlp(hidden, ffn, activation=config.text("hidden_act", "silu")),
        norms=pre_norms(hidden),
        dropout=config.number("resid_pdrop"),
    )
    num_layers = config.size("num_hidden_layers", default=32)
    return decoder(
        config,
        "phi3",
        hidden,
        (layer,) * num_layers,
        vocab=32064,
        max_seq_len=4096,
        tied=False,
        rotary_dim=rotary_dim,
        windows=same_windows(config, num_layers, None),
    )


def phimoe_experts(config: Config, hidden: int) -> Moe:
    """Phi-3.5-MoE's experts, chosen by SparseMixer."""
    return routed_moe(
        config,
        hidden,
        experts=16,
        top_k=2,
        ffn=6400,
        ffn_key="intermediate_size",
        counts=("num_local_experts",),
        router="router",
        router_impl="sparsemixer",
        jitter=config.number("input_jitter_noise") > 0,
    )


def phimoe_frame(config: Config, hidden: int) -> Fields:
    """`lm_head_bias`: a bias on the logits."""
    if not config.flag("lm_head_bias", default=False):
        return {}
    tied = config.flag("tie_word_embeddings", default=False)
    return biased_head(hidden, config.size("vocab_size", default=32064), tied=tied)


PHIMOE = LlamaLike(
    hidden=4096,
    ffn=6400,
    layers=32,
    heads=32,
    kv_heads=8,
    vocab=32064,
    max_seq_len=131072,
    experts=phimoe_experts,
    norm=layer_norm,
    windows=same(None),
    frame=phimoe_frame,
)
FAMILIES = {"phi": read_phi, "phi3": read_phi3, **readers({"phimoe": PHIMOE})}
