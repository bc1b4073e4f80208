"""DBRX and StarCoder 1 (gpt_bigcode): fused q, k, v. DBRX has parameters and cache only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..model.arch import Arch, Buffer, Layer
from ..model.blocks import Moe, Norm, Weight
from .attention import fused_attention
from .config import Config
from .frame import learned_positions, named_decoder
from .mlps import plain_mlp
from .norms import layer_norm, layer_norm_pair


def read_dbrx(data: Mapping[str, Any]) -> Arch:
    """DBRX (transformers 5.17 models/dbrx): each expert's rows lie one behind the other."""
    config = Config(data)
    hidden = config.size("d_model", "hidden_size", default=2048)
    heads = config.size("n_heads", "num_attention_heads", default=16)
    inner, ffn = config.section("attn_config"), config.section("ffn_config")
    kv_heads = inner.size("kv_n_heads", default=1)
    config.divided(heads, "key-value heads", kv_heads)
    size = config.divided(hidden, "heads", heads)
    width = ffn.size("ffn_hidden_size", default=3584)
    experts = ffn.size("moe_num_experts", default=4)
    embed = ("embed", hidden)
    rows = (("expert_ffn", experts * width), embed)
    layer = Layer(
        kind="moe",
        mixer=fused_attention(hidden, heads, kv_heads, size, name="Wqkv", output="out_proj",
                              rotary_dim=size, clipped=inner.get("clip_qkv") is not None),
        mixer_name="norm_attn_norm.attn",
        mlp=Moe(
            router=(Weight("router.layer.weight", (("router", experts), embed)),),
            experts=tuple(Weight(f"experts.mlp.{n}", rows) for n in ("w1", "v1", "w2")),
            num_experts=experts,
            top_k=ffn.size("moe_top_k", default=1),
            ffn=width,
        ),
        mlp_name="ffn",
        norms=tuple(
            (place, layer_norm(f"norm_attn_norm.{name}", hidden, bias=False))
            for place, name in (("pre", "norm_1"), ("pre_mlp", "norm_2"))
        ),
    )  # fmt: skip
    return named_decoder(
        config, "dbrx", hidden, (layer,) * config.size("n_layers", default=24),
        words="transformer.wte", blocks="transformer.blocks",
        final_norm=Norm("transformer.norm_f", embed, "layer"), vocab=32000,
        max_seq_len=config.size("max_seq_len", default=2048), tied=False, trains=False,
    )  # fmt: skip


def read_gpt_bigcode(data: Mapping[str, Any]) -> Arch:
    """StarCoder and SantaCoder (transformers 5.17 models/gpt_bigcode): one key-value head.

    The model keeps a causal mask of all positions, whatever the attention.
    """
    config = Config(data)
    hidden = config.size("n_embd", "hidden_size", default=768)
    heads = config.size("n_head", "num_attention_heads", default=12)
    kv_heads = 1 if config.flag("multi_query", default=True) else heads
    ffn = config.size("n_inner", default=4 * hidden)
    positions = config.size("n_positions", "max_position_embeddings", default=1024)
    vocab = config.size("vocab_size", default=50257)
    dropout = config.number("resid_pdrop", default=0.1)
    layer = Layer(
        kind="dense",
        mixer=fused_attention(
            hidden, heads, kv_heads, config.divided(hidden, "heads", heads), name="c_attn",
            output="c_proj", bias=True, output_bias=True, residual_dropout=dropout,
            dropout=config.number("attn_pdrop", default=0.1),
        ),
        mixer_name="attn",
        mlp=plain_mlp(hidden, ffn, config.text("activation_function", "gelu_pytorch_tanh"),
                      up="c_fc", down="c_proj", dropout=dropout),
        norms=layer_norm_pair(hidden, "ln_1", "ln_2"),
    )  # fmt: skip
    return named_decoder(
        config, "gpt_bigcode", hidden,
        (layer,) * config.size("n_layer", "num_hidden_layers", default=12),
        words="transformer.wte", blocks="transformer.h", vocab=vocab,
        final_norm=layer_norm("transformer.ln_f", hidden), max_seq_len=positions, tied=True,
        embedding=learned_positions("transformer", vocab, positions, hidden),
        embedding_dropout=config.number("embd_pdrop", default=0.1),
        buffers=(Buffer("transformer.bias", (positions, positions), 8),),
    )  # fmt: skip


FAMILIES = {"dbrx": read_dbrx, "gpt_bigcode": read_gpt_bigcode}
