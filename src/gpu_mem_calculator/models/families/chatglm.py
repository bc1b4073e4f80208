"""ChatGLM 2 and 3 and glm-4-9b with the code published beside their weights."""

from __future__ import annotations

from ..arch.arch import Arch, Buffer, Layer
from ..arch.blocks import Attention, Linear, Norm, NormImpl, Weight
from .attention import fused_attention
from .config import Config, ConfigError
from .frame import decoder_layer
from .mlps import fused_mlp
from .norms import PRE, norms_at

EMBEDDING = "transformer.embedding.word_embeddings"


def _attention(config: Config, hidden: int) -> Attention:
    """One fused projection for q and the key-value groups; rotary over half of each head.

    The published class defaults `add_qkv_bias` to false, but each published config sets it, so
    a config that leaves it out is taken to have the biases.
    """
    heads = config.size("num_attention_heads", default=32)
    head_dim = config.size("kv_channels", "head_dim", default=128)
    names = ("multi_query_group_num", "num_key_value_heads")
    grouped = config.flag("multi_query_attention", default=config.get(*names) is not None)
    kv_heads = config.size(*names, default=1) if grouped else heads
    config.divided(heads, "key-value groups", kv_heads)
    bias = config.flag("add_bias_linear")
    return fused_attention(
        hidden,
        heads,
        kv_heads,
        head_dim,
        name="query_key_value",
        output="dense",
        bias=bias or config.flag("add_qkv_bias", default=True),
        output_bias=bias,
        rotary_dim=head_dim // 2,
        rotary_impl="interleaved",
        dropout=config.number("attention_dropout"),
    )


def _layer(config: Config, hidden: int, attention: Attention, norm: tuple[NormImpl, bool]) -> Layer:
    """Norm, attention, norm, and SwiGLU with gate and up in one projection."""
    ffn = config.size("ffn_hidden_size", "intermediate_size", default=13696)
    names, bias = ("dense_h_to_4h", "dense_4h_to_h"), config.flag("add_bias_linear")
    return decoder_layer(
        hidden,
        attention,
        fused_mlp(hidden, ffn, names, bias=bias),
        mixer_name="self_attention",
        norms=norms_at(PRE, hidden, lambda name, size: Norm(name, ("embed", size), *norm)),
        dropout=config.number("hidden_dropout"),
    )


def read_chatglm(config: Config) -> Arch:
    """ChatGLM2-6B, ChatGLM3-6B and glm-4-9b (modeling_chatglm.py of THUDM/chatglm3-6b).

    Its RMSNorm multiplies by the weight in fp32 and casts last. The frequencies have half the
    rotary size, in the model's own precision.
    """
    if config.get("inner_hidden_size") is not None:
        raise ConfigError(
            "model.config.inner_hidden_size belongs to ChatGLM-6B, which is not read; "
            "the nearest family is ChatGLM2"
        )
    hidden = config.hidden(4096)
    vocab = config.size("padded_vocab_size", "vocab_size", default=65024)
    attention, embed = _attention(config, hidden), ("embed", hidden)
    rms = config.flag("rmsnorm", default=True)
    norm: tuple[NormImpl, bool] = ("rms_float", False) if rms else ("layer", True)
    layer = _layer(config, hidden, attention, norm)
    last = config.flag("post_layer_norm", default=True)
    return Arch(
        family="chatglm",
        hidden=hidden,
        vocab=vocab,
        max_seq_len=config.size("seq_length", "max_position_embeddings", default=2048),
        layers=(layer,) * config.size("num_layers", "num_hidden_layers", default=28),
        layer_prefix="transformer.encoder.layers",
        embedding=(Weight(f"{EMBEDDING}.weight", (("vocab", vocab), embed)),),
        final_norm=Norm("transformer.encoder.final_layernorm", embed, *norm) if last else None,
        head=Linear("transformer.output_layer", embed, ("vocab", vocab)),
        buffers=(Buffer("transformer.rotary_pos_emb.inv_freq", (attention.head_dim // 4,), 16),),
    )


FAMILIES = {"chatglm": read_chatglm}
