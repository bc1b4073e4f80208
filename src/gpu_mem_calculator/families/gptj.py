"""GPT-J: interleaved rotary on 64 of a head's channels, one norm for two parallel branches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..model.arch import Arch, Layer
from .attention import separate_attention
from .config import Config
from .frame import biased_head, layer_buffers, named_decoder
from .mlps import plain_mlp
from .norms import layer_norm


def gptj_layer(config: Config, hidden: int, rotary_dim: int) -> Layer:
    """Scores are computed in fp32, and only by the eager code (or FlashAttention 2)."""
    heads = config.size("n_head", "num_attention_heads", default=16)
    dropout = config.number("resid_pdrop")
    mixer = separate_attention(
        hidden,
        heads,
        heads,
        config.divided(hidden, "heads", heads),
        output="out_proj",
        rotary_dim=rotary_dim,
        rotary_impl="gptj",
        sdpa=False,
        float_scores=True,
        float_softmax=False,
        dropout=config.number("attn_pdrop"),
        residual_dropout=dropout,
    )
    ffn = config.size("n_inner", default=4 * hidden)
    activation = config.text("activation_function", "gelu_new")
    return Layer(
        kind="dense",
        mixer=mixer,
        mixer_name="attn",
        mlp=plain_mlp(hidden, ffn, activation, up="fc_in", down="fc_out", dropout=dropout),
        norms=(("pre", layer_norm("ln_1", hidden)),),
        parallel=True,
    )


def read_gptj(data: Mapping[str, Any]) -> Arch:
    """GPT-J (transformers 5.17 models/gptj). Every layer keeps its own table of positions."""
    config = Config(data)
    hidden = config.size("n_embd", "hidden_size", default=4096)
    layers = config.size("n_layer", "num_hidden_layers", default=28)
    length = config.size("n_positions", "max_position_embeddings", default=2048)
    vocab = config.size("vocab_size", default=50400)
    rotary_dim = config.size("rotary_dim", default=64)
    tied = config.flag("tie_word_embeddings", default=False)
    return named_decoder(
        config,
        "gptj",
        hidden,
        (gptj_layer(config, hidden, rotary_dim),) * layers,
        words="transformer.wte",
        blocks="transformer.h",
        final_norm=layer_norm("transformer.ln_f", hidden),
        vocab=vocab,
        max_seq_len=length,
        tied=tied,
        embedding_dropout=config.number("embd_pdrop"),
        buffers=layer_buffers(
            "transformer.h", "attn.embed_positions", layers, (length, rotary_dim)
        ),
        **biased_head(hidden, vocab, tied=tied),
    )


FAMILIES = {"gptj": read_gptj}
