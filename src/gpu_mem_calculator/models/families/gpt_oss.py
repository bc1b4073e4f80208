"""gpt-oss: attention sinks, every second layer in a window, experts with biases."""

from __future__ import annotations

from msgspec.structs import replace

from ..arch.blocks import Moe, Weight
from .config import Config, Fields
from .llama_like import NEVER, Counts, LlamaLike, readers
from .mlps import stacked_moe
from .norms import rms_product
from .windows import typed


def biased_experts(config: Config, hidden: int) -> Moe:
    """gpt-oss stores each expert as (in, out) and gives it and the router biases.

    Its activation is (up + 1) · gate · sigmoid(1.702 gate) on clamped halves
    (transformers 5.17 models/gpt_oss GptOssExperts._apply_gate).
    """
    num_experts = config.size("num_local_experts", "num_experts", default=128)
    top_k = config.size("num_experts_per_tok", default=4)
    ffn = config.ffn(2880)
    moe = stacked_moe(hidden, num_experts, top_k, ffn, router="router", activation="gpt_oss")
    expert, embed = ("expert", num_experts), ("embed", hidden)
    both, inner = ("expert_ffn", 2 * ffn), ("expert_ffn", ffn)
    weights = {"gate_up_proj": (embed, both), "gate_up_proj_bias": (both,)}
    weights |= {"down_proj": (inner, embed), "down_proj_bias": (embed,)}
    return replace(
        moe,
        router=(*moe.router, Weight("router.bias", (("router", num_experts),))),
        experts=tuple(Weight(f"experts.{n}", (expert, *dims)) for n, dims in weights.items()),
        router_impl="top_softmax",
    )


def sink_attention(config: Config, counts: Counts) -> Fields:
    """A learnt logit for each head, which torch's own attention does not take."""
    sinks = Weight("sinks", (("heads", counts[0]),))
    return {"sinks": True, "sdpa": False, "float_softmax": False, "extra": (sinks,)}


GPT_OSS = LlamaLike(
    *(2880, 2880, 36, 64, 8, 201088, 131072),
    head_dim=64,
    norm=rms_product,
    experts=biased_experts,
    biases=(("attention_bias", True), ("attention_bias", True), NEVER),
    rotary_impl="joined",
    attention=sink_attention,
    windows=typed(128, lambda i: i % 2 == 0),
)
FAMILIES = readers({"gpt_oss": GPT_OSS})
