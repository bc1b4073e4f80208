"""A model as the arguments of pretrain_gpt.py."""

from __future__ import annotations

from typing import Any

from ...models.arch.arch import Arch
from ...models.arch.blocks import Attention, LatentAttention, Mlp, Moe
from ...run.run import Run
from ...runfile.find_model.model_facts import shape_facts
from ...runfile.text.errors import InputError
from ..reading.reading import Section

NORMS = {"rmsnorm": "RMSNorm", "layernorm": "LayerNorm"}
POSITIONS = {"learned": "learned_absolute", "rope": "rope", "none": "none"}


def model_arguments(run: Run) -> Section:
    """The shape of the model."""
    arch, facts = run.arch, shape_facts(run.arch)
    mixer = arch.layers[-1].mixer
    if not isinstance(mixer, Attention | LatentAttention):
        raise InputError(
            f"model family {arch.family!r} has layers without softmax attention, which "
            "Megatron-LM's pretrain_gpt.py does not have; choose deepspeed or transformers"
        )
    position = facts["position_embedding"]
    if position not in POSITIONS:
        raise InputError(
            f"model family {arch.family!r} has {position} positions, which pretrain_gpt.py does "
            "not have; choose deepspeed or transformers"
        )
    return {
        "num_layers": len(arch.layers),
        "hidden_size": int(arch.hidden),
        "num_attention_heads": mixer.heads,
        **_attention(mixer, int(arch.hidden)),
        **_mlp(arch),
        "normalization": NORMS[facts["normalization"]],
        "position_embedding_type": POSITIONS[position],
        "max_position_embeddings": int(arch.max_seq_len or run.seq),
        "untie_embeddings_and_output_weights": not arch.tied,
        "vocab_size": int(arch.vocab),
    }


def _attention(mixer: Attention | LatentAttention, hidden: int) -> Section:
    """Heads, or ranks of latents; biases of q, k and v, and norms of q and k."""
    if isinstance(mixer, LatentAttention):
        return {
            "multi_latent_attention": True,
            "q_lora_rank": mixer.query_rank or None,
            "kv_lora_rank": mixer.kv_rank,
            "qk_head_dim": mixer.nope_dim,
            "qk_pos_emb_head_dim": mixer.rope_dim,
            "v_head_dim": mixer.value_dim,
            "qk_layernorm": True,
            "add_bias_linear": False,
        }
    grouped = mixer.kv_heads != mixer.heads
    usual = mixer.head_dim * mixer.heads == hidden
    inputs = any(part.bias for part in mixer.inputs)
    return {
        "group_query_attention": grouped,
        "num_query_groups": mixer.kv_heads if grouped else 1,
        "kv_channels": None if usual else mixer.head_dim,
        "qk_layernorm": bool(mixer.norms),
        "add_bias_linear": mixer.output.bias,
        "add_qkv_bias": inputs and not mixer.output.bias,
    }


def _mlp(arch: Arch) -> Section:
    """Widths, and the experts, of all layers or of those behind dense ones."""
    blocks: list[Any] = [layer.mlp for layer in arch.layers]
    dense = next((block for block in blocks if isinstance(block, Mlp)), None)
    experts = next((block for block in blocks if isinstance(block, Moe)), None)
    shown: Any = dense or experts
    found: Section = {
        "ffn_hidden_size": int(shown.ffn),
        "swiglu": bool(getattr(shown, "gated", True)),
    }
    if experts is None:
        return found
    first = sum(isinstance(block, Mlp) for block in blocks)
    return found | {
        "num_experts": experts.num_experts,
        "moe_router_topk": experts.top_k,
        "moe_ffn_hidden_size": int(experts.ffn),
        "moe_shared_expert_intermediate_size": int(experts.shared.ffn) if experts.shared else None,
        "moe_layer_freq": f"([0]*{first}+[1]*{len(blocks) - first})" if first else 1,
        "moe_grouped_gemm": True,
    }
