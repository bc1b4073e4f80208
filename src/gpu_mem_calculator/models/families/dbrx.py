"""DBRX: fused q, k, v and experts. Parameters and cache; its activations are not modelled."""

from __future__ import annotations

from ..arch.arch import Arch
from ..arch.blocks import Moe, Weight
from .attention import fused_attention
from .config import Config, Fields
from .frame import decoder, decoder_layer
from .norms import layer_norm


def read_dbrx(config: Config) -> Arch:
    """DBRX (transformers 5.17 models/dbrx): the rows of all experts are in one matrix."""
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
    fields: Fields = {"rotary_dim": size, "clipped": inner.get("clip_qkv") is not None}
    names: Fields = {"name": "Wqkv", "output": "out_proj"}
    places = {"pre": "norm_attn_norm.norm_1", "pre_mlp": "norm_attn_norm.norm_2"}
    layer = decoder_layer(
        hidden,
        fused_attention(hidden, heads, kv_heads, size, **names, **fields),
        Moe(
            router=(Weight("router.layer.weight", (("router", experts), embed)),),
            experts=tuple(Weight(f"experts.mlp.{n}", rows) for n in ("w1", "v1", "w2")),
            num_experts=experts,
            top_k=ffn.size("moe_top_k", default=1),
            ffn=width,
        ),
        mixer_name="norm_attn_norm.attn",
        mlp_name="ffn",
        norms=tuple((p, layer_norm(name, hidden, bias=False)) for p, name in places.items()),
    )
    return decoder(
        config,
        "dbrx",
        hidden,
        (layer,) * config.size("n_layers", default=24),
        words="transformer.wte",
        blocks="transformer.blocks",
        final_norm=layer_norm("transformer.norm_f", hidden, bias=False),
        vocab=32000,
        max_seq_len=2048,
        length=("max_seq_len",),
        trains=False,
    )


FAMILIES = {"dbrx": read_dbrx}
