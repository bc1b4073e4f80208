"""Phi-1.5 and Phi-2 (parallel, biased), Phi-3 and Phi-4 (fused), Phi-3.5-MoE."""

from __future__ import annotations

from functools import partial

from ..arch.arch import Arch
from ..arch.blocks import Attention
from .attention import fused_attention, head_counts, head_norms, partial_rotary, separate_attention
from .config import Config, ConfigError, Fields
from .frame import biased_head, decoder, decoder_layer
from .llama_like import LlamaLike, readers
from .mlps import fused_mlp, plain_mlp, routed_moe
from .norms import layer_norm
from .windows import same, same_windows


def _phi_attention(config: Config, hidden: int) -> Attention:
    """q, k, v and dense with biases; rotary over half of each head; perhaps layer norms on q, k.

    Those norms have hidden / heads elements, which must then be the head size.
    """
    heads, kv_heads, head_dim = head_counts(config, hidden, heads=32, kv_heads=None)
    normed = config.flag("qk_layernorm")
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
        output="dense",
        norms=head_norms(("q_layernorm", "k_layernorm"), head_dim, "layer") if normed else (),
        rotary_dim=partial_rotary(config, head_dim, 0.5),
        rotary_impl="joined",  # with what is not turned, even where that is nothing
        dropout=config.number("attention_dropout"),
    )


def read_phi(config: Config) -> Arch:
    """Phi-1, 1.5 and 2 (transformers 5.17 models/phi): one norm feeds attention and MLP alike."""
    hidden, vocab = config.hidden(2048), config.vocab(51200)
    attention = _phi_attention(config, hidden)
    mlp = plain_mlp(hidden, config.ffn(8192), config.activation("gelu_new"), ("fc1", "fc2"))
    norms, dropout = (("pre", layer_norm("input_layernorm", hidden)),), config.number("resid_pdrop")
    layer = decoder_layer(hidden, attention, mlp, norms=norms, parallel=True, dropout=dropout)
    return decoder(
        config,
        "phi",
        hidden,
        (layer,) * config.layers(24),
        vocab=vocab,
        max_seq_len=2048,
        rotary_dim=attention.rotary_dim,
        final_norm=layer_norm("model.final_layernorm", hidden),
        embedding_dropout=config.number("embd_pdrop"),
        **biased_head(hidden, vocab, tied=config.flag("tie_word_embeddings")),
    )


def read_phi3(config: Config) -> Arch:
    """Phi-3, 3.5 and 4 (transformers 5.17 models/phi3): fused qkv, fused gate and up.

    `embd_pdrop` is in the config but no module of the model uses it.
    """
    hidden, layers = config.hidden(3072), config.layers(32)
    counts = head_counts(config, hidden, heads=32, kv_heads=None)
    rotary_dim = partial_rotary(config, counts[2], 1.0)
    rotary: Fields = {"rotary_dim": rotary_dim, "rotary_impl": "joined"}
    fields = {"name": "qkv_proj", "output": "o_proj", **rotary}
    fields["dropout"] = config.number("attention_dropout")
    attention = fused_attention(hidden, *counts, **fields)
    mlp = fused_mlp(hidden, config.ffn(8192), activation=config.activation())
    layer = decoder_layer(hidden, attention, mlp, dropout=config.number("resid_pdrop"))
    windows = same_windows(config, layers, None)
    sizes: Fields = {"vocab": 32064, "max_seq_len": 4096, "rotary_dim": rotary_dim}
    return decoder(config, "phi3", hidden, (layer,) * layers, **sizes, windows=windows)


def phimoe_frame(config: Config, hidden: int) -> Fields:
    """`lm_head_bias`: a bias on the logits."""
    if not config.flag("lm_head_bias"):
        return {}
    tied = config.flag("tie_word_embeddings")
    return biased_head(hidden, config.vocab(32064), tied=tied)


SPARSEMIXER: Fields = {"router": "router", "router_impl": "sparsemixer"}
SPARSEMIXER |= {"ffn_key": "intermediate_size", "counts": ("num_local_experts",)}
SPARSEMIXER |= {"jitter_key": "input_jitter_noise"}
PHIMOE = LlamaLike(
    *(4096, 6400, 32, 32, 8, 32064, 131072),
    experts=partial(routed_moe, experts=16, top_k=2, ffn=6400, **SPARSEMIXER),
    norm=layer_norm,
    windows=same(None),
    frame=phimoe_frame,
)
FAMILIES = {"phi": read_phi, "phi3": read_phi3, **readers({"phimoe": PHIMOE})}
