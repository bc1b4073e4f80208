"""LongCat-Flash (two latent attentions a layer; parameters and cache only) and MiniCPM 3."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from ..model.arch import Arch, Buffer, Layer
from ..model.blocks import Moe, Norm, Weight
from .config import Config
from .deepseek import latent_attention
from .frame import decoder, rotary_buffer
from .mlps import gated_mlp
from .norms import pre_norms


def _moe(config: Config, hidden: int, activation: str) -> Moe:
    """Real experts, and `zero_expert_num` that pass a token on and have no weights.

    (transformers 5.17 makes rows of gate_up for those too; checkpoints and servers have none.)
    """
    real = config.size("n_routed_experts", default=512)
    both = real + config.count("zero_expert_num", default=256)
    ffn = config.size("expert_ffn_hidden_size", default=2048)
    embed = ("embed", hidden)
    return Moe(
        router=(Weight("router.classifier.weight", (("router", both), embed)),),
        experts=(
            Weight("experts.gate_up_proj", (("expert", real), ("expert_ffn", 2 * ffn), embed)),
            Weight("experts.down_proj", (("expert", real), embed, ("expert_ffn", ffn))),
        ),
        num_experts=real,
        top_k=config.size("moe_topk", default=12),
        ffn=ffn,
        activation=activation,
        router_impl="float_softmax",
    )


def read_longcat(data: Mapping[str, Any]) -> Arch:
    """LongCat-Flash (transformers 5.17 models/longcat_flash)."""
    config = Config(data)
    hidden = config.size("hidden_size", default=6144)
    layers = config.size("num_layers", default=28)
    activation = config.text("hidden_act", "silu")
    attention = latent_attention(config, hidden, heads=64, rotary_impl="interleaved")
    ffn = config.size("ffn_hidden_size", default=12288)
    dense = gated_mlp(hidden, ffn, activation=activation)
    embed = ("embed", hidden)
    layer = Layer(
        kind="moe",
        mixer=attention,
        mixer_name="self_attn.0",
        beside=(("self_attn.1", attention),),
        mlp=_moe(config, hidden, activation),
        norms=tuple(
            (f"{place}_{i}", Norm(f"{name}.{i}", embed))
            for place, name in (("pre", "input_layernorm"), ("pre_mlp", "post_attention_layernorm"))
            for i in (0, 1)
        ),
        extra=tuple(
            replace(weight, name=f"mlps.{i}.{weight.name}")
            for i in (0, 1)
            for weight in dense.weights()
        ),
    )
    return decoder(
        config,
        "longcat_flash",
        hidden,
        (layer,) * layers,
        vocab=131072,
        max_seq_len=131072,
        tied=False,
        rotary_dim=attention.rope_dim,
        trains=False,
    )


def read_minicpm3(data: Mapping[str, Any]) -> Arch:
    """MiniCPM 3 (transformers 5.17 models/minicpm3): dense, with latent attention."""
    sizes = {
        "q_lora_rank": 768,
        "kv_lora_rank": 256,
        "qk_nope_head_dim": 64,
        "qk_rope_head_dim": 32,
        "v_head_dim": 64,
    }
    config = Config({**sizes, **{k: v for k, v in data.items() if v is not None}})
    hidden = config.size("hidden_size", default=2560)
    attention = latent_attention(config, hidden, heads=40, rotary_impl="half")
    ffn = config.size("intermediate_size", default=6400)
    mlp = gated_mlp(
        hidden,
        ffn,
        bias=config.flag("mlp_bias", default=False),
        activation=config.text("hidden_act", "silu"),
    )
    layer = Layer(kind="dense", mixer=attention, mlp=mlp, norms=pre_norms(hidden))
    scale = Buffer("model.embed_tokens.embed_scale", (), 64)
    return decoder(
        config,
        "minicpm3",
        hidden,
        (layer,) * config.size("num_hidden_layers", default=62),
        vocab=73448,
        max_seq_len=32768,
        tied=True,
        rotary_dim=attention.rope_dim,
        buffers=(scale, *rotary_buffer(attention.rope_dim)),
    )


FAMILIES = {"longcat_flash": read_longcat, "minicpm3": read_minicpm3}
