"""DBRX: fused q, k, v and experts. Parameters and cache; its activations are not modelled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..model.arch import Arch, Layer
from ..model.blocks import Moe, Norm, Weight
from .attention import fused_attention
from .config import Config
from .frame import named_decoder
from .norms import layer_norm


def read_dbrx(data: Mapping[str, Any]) -> Arch:
    """DBRX (transformers 5.17 models/dbrx): the rows of all experts are in one matrix."""
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
        mixer=fused_attention(
            hidden,
            heads,
            kv_heads,
            size,
            name="Wqkv",
            output="out_proj",
            rotary_dim=size,
            clipped=inner.get("clip_qkv") is not None,
        ),
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
    )
    return named_decoder(
        config,
        "dbrx",
        hidden,
        (layer,) * config.size("n_layers", default=24),
        words="transformer.wte",
        blocks="transformer.blocks",
        final_norm=Norm("transformer.norm_f", embed, "layer"),
        vocab=32000,
        max_seq_len=config.size("max_seq_len", default=2048),
        tied=False,
        trains=False,
    )


FAMILIES = {"dbrx": read_dbrx}
