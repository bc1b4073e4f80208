"""LongCat-Flash (two latent attentions a layer; parameters and cache only) and MiniCPM 3."""

from __future__ import annotations

from msgspec.structs import replace

from ..arch.arch import Arch, Buffer
from ..arch.blocks import Moe, Weight
from .config import Config, Fields
from .deepseek import latent_attention
from .frame import decoder, decoder_layer, rotary_buffer
from .mlps import gated_mlp
from .norms import PRE, norms_at


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


def read_longcat(config: Config) -> Arch:
    """LongCat-Flash (transformers 5.17 models/longcat_flash)."""
    hidden, activation = config.hidden(6144), config.activation()
    layers = config.size("num_layers", default=28)
    attention = latent_attention(config, hidden, 64)
    ffn = config.size("ffn_hidden_size", default=12288)
    dense = gated_mlp(hidden, ffn, activation=activation)
    twice = ((f"{place}_{i}", f"{name}.{i}") for place, name in PRE for i in (0, 1))
    mlps = (replace(w, name=f"mlps.{i}.{w.name}") for i in (0, 1) for w in dense.weights())
    layer = decoder_layer(
        hidden,
        attention,
        _moe(config, hidden, activation),
        mixer_name="self_attn.0",
        beside=(("self_attn.1", attention),),
        norms=norms_at(tuple(twice), hidden),
        extra=tuple(mlps),
    )
    sizes: Fields = {"vocab": 131072, "max_seq_len": 131072, "rotary_dim": attention.rope_dim}
    return decoder(config, "longcat_flash", hidden, (layer,) * layers, **sizes, trains=False)


def read_minicpm3(config: Config) -> Arch:
    """MiniCPM 3 (transformers 5.17 models/minicpm3): dense, with latent attention."""
    ranks = {"q_lora_rank": 768, "kv_lora_rank": 256}
    sizes = {"qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64}
    config = config.with_defaults({**ranks, **sizes})
    hidden, bias = config.hidden(2560), config.flag("mlp_bias")
    attention = latent_attention(config, hidden, 40, "half")
    mlp = gated_mlp(hidden, config.ffn(6400), bias=bias, activation=config.activation())
    layers = (decoder_layer(hidden, attention, mlp),) * config.layers(62)
    scale = Buffer("model.embed_tokens.embed_scale", (), 64)
    buffers = (scale, *rotary_buffer(attention.rope_dim))
    frame: Fields = {"vocab": 73448, "max_seq_len": 32768, "tied": True, "buffers": buffers}
    return decoder(config, "minicpm3", hidden, layers, **frame)


FAMILIES = {"longcat_flash": read_longcat, "minicpm3": read_minicpm3}
