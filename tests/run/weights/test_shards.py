"""The part of a model on one rank: every dimension, every family."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator.models.arch.arch import Arch
from gpu_mem_calculator.models.families import read_config
from gpu_mem_calculator.run.weights.shards import ServerShard, ShardedParameter, held
from tests.serving.every_family import NAMES, family
from tests.serving.vllm_runs import arch


def full_shard(model: Arch, **options: Any) -> ServerShard:
    """A shard with all layers."""
    return ServerShard(places=range(len(model.layers)), **options)


def sharded(model: Arch, ranks: int, **more: Any) -> dict[str, ShardedParameter]:
    """Every parameter under tensor parallelism, by name."""
    shard = full_shard(model, tp=ranks, attention_tp=ranks, expert_tp=ranks, **more)
    return {one.name: one for one in held(model, shard)}


def router_bias_elements(model: Arch) -> int:
    """Elements of router biases, which are buffers of the model."""
    return sum(b.shape[0] for b in model.buffers if b.name.endswith("e_score_correction_bias"))


@pytest.mark.parametrize("name", NAMES)
def test_one_rank_alone_has_every_parameter(name: str) -> None:
    """The vision tower and the router biases are included."""
    model = family(name)
    elements = sum(one.numel for one in held(model, full_shard(model)))
    assert elements == model.num_parameters + model.tower_parameters + router_bias_elements(model)


@pytest.mark.parametrize("name", NAMES)
def test_two_ranks_together_have_every_parameter_at_least_once(name: str) -> None:
    """Together they have at most twice the elements."""
    model = family(name)
    all_of_it = sum(one.numel for one in held(model, full_shard(model)))
    one = sum(part.numel for part in sharded(model, 2).values())
    assert all_of_it <= 2 * one <= 2 * all_of_it


@pytest.mark.parametrize("name", NAMES)
def test_stages_of_a_pipeline_have_the_model_between_them(name: str) -> None:
    """A tied head is a copy on the last stage."""
    model = family(name)
    middle = len(model.layers) // 2
    first = ServerShard(places=range(middle), head=False)
    last = ServerShard(places=range(middle, len(model.layers)), embedding=False)
    elements = sum(one.numel for shard in (first, last) for one in held(model, shard))
    copied = 0 if model.head is not None else model.vocab * model.hidden
    assert elements == sum(one.numel for one in held(model, full_shard(model))) + copied


def test_key_value_heads_are_repeated_where_ranks_are_more() -> None:
    """Qwen2.5-0.5B has 2 heads; on 4 ranks each has one."""
    parameters = sharded(arch("qwen2.5-0.5b"), 4)
    assert parameters["model.layers.0.self_attn.k_proj.weight"].shape == (64, 896)
    assert parameters["model.layers.0.self_attn.q_proj.bias"].shape == (224,)


def test_a_fused_projection_has_its_rank_s_queries_and_repeated_keys() -> None:
    """Falcon-7B has one key-value head, Falcon-40B has eight."""
    small = read_config(
        {
            "model_type": "falcon",
            "num_hidden_layers": 1,
            "hidden_size": 512,
            "num_attention_heads": 8,
            "multi_query": True,
            "bias": True,
        }
    )
    parameters = sharded(small, 4)
    fused = parameters["transformer.h.0.self_attention.query_key_value.weight"]
    assert fused.shape == (2 * 64 + 2 * 64, 512)
    assert parameters["transformer.h.0.self_attention.query_key_value.bias"].shape == (256,)
    assert parameters["transformer.h.0.self_attention.dense.bias"].shape == (512,)
    large = sharded(arch("falcon-40b"), 8)
    assert large["transformer.h.0.self_attention.query_key_value.weight"].shape == (
        (16 + 2) * 64,
        8192,
    )


def test_latent_ranks_are_whole_and_heads_are_cut() -> None:
    """DeepSeek-V3 on 8 ranks: latents are replicated, heads are sharded."""
    parameters = sharded(arch("deepseek-v3"), 8)
    name = "model.layers.3.self_attn"
    assert parameters[f"{name}.q_a_proj.weight"].shape == (1536, 7168)
    assert parameters[f"{name}.kv_a_proj_with_mqa.weight"].shape == (576, 7168)
    assert parameters[f"{name}.kv_b_proj.weight"].shape == (16 * 256, 512)
    assert parameters[f"{name}.o_proj.weight"].shape == (7168, 16 * 128)


def test_routers_are_whole_experts_spread_and_cut_shared_ones_cut() -> None:
    """DeepSeek-V3: 256 experts distributed over 8 ranks, or each sharded over 8."""
    model = arch("deepseek-v3")
    spread = {one.name: one for one in held(model, full_shard(model, tp=8, attention_tp=8, ep=8))}
    name = "model.layers.3.mlp"
    assert spread[f"{name}.experts.gate_up_proj"].shape == (32, 4096, 7168)
    assert spread[f"{name}.gate.weight"].shape == (256, 7168)
    assert spread[f"{name}.gate.e_score_correction_bias"].bits == 32
    assert spread[f"{name}.shared_experts.gate_proj.weight"].shape == (256, 7168)
    assert sharded(model, 8)[f"{name}.experts.down_proj"].shape == (256, 7168, 256)
    alone = sharded(model, 8, shared_tp=1)
    assert alone[f"{name}.shared_experts.gate_proj.weight"].shape == (2048, 7168)


def test_inputs_of_an_expert_are_known_whichever_way_it_is_stored() -> None:
    """gpt-oss stores (in, out), Mixtral (out, in); biases are not experts."""
    oss, mixtral = sharded(arch("gpt-oss-20b"), 1), sharded(arch("mixtral-8x7b"), 1)
    assert oss["model.layers.0.mlp.experts.gate_up_proj"].matrix == (32, 5760, 2880)
    assert oss["model.layers.0.mlp.experts.gate_up_proj_bias"].role == "other"
    assert mixtral["model.layers.0.mlp.experts.down_proj"].matrix == (8, 4096, 14336)
    assert sharded(arch("gpt2"), 1)["transformer.h.0.mlp.c_fc.weight"].matrix == (1, 3072, 768)


def test_a_shared_expert_s_gate_is_a_router() -> None:
    """Qwen1.5-MoE: it is never quantized, and replicated."""
    parameters = sharded(arch("qwen1.5-moe-a2.7b"), 2)
    gate = parameters["model.layers.0.mlp.shared_expert_gate.weight"]
    assert (gate.role, gate.shape) == ("router", (1, 2048))


def test_groups_of_a_state_space_are_repeated() -> None:
    """Mamba-2-2.7B has one group of B and C, which each rank needs."""
    parameters = sharded(arch("mamba2-2.7b"), 2)
    name = "backbone.layers.0.mixer"
    inner, state, heads = 5120, 128, 80
    rows = inner // 2 + inner // 2 + 2 * state + heads // 2
    assert parameters[f"{name}.in_proj.weight"].shape == (rows, 2560)
    assert parameters[f"{name}.conv1d.weight"].shape == (inner // 2 + 2 * state, 1, 4)
    assert parameters[f"{name}.conv1d.weight"].role == "other"


def test_a_vocabulary_is_padded_and_cut_and_a_tied_head_is_one_tensor() -> None:
    """Gemma 3 has 262208 rows; a head's bias is sharded with its rows."""
    parameters = sharded(arch("gemma3-1b"), 8, vocab_multiple=64)
    rows = parameters["model.embed_tokens.weight"].shape[0]
    assert rows == -(-262144 // 64) * 64 // 8
    assert "lm_head.weight" not in parameters
    phi = sharded(arch("phi-2"), 2)
    assert phi["lm_head.bias"].shape == (51200 // 2,)


def test_embedding_and_head_may_be_cut_otherwise_than_the_rest() -> None:
    """Data-parallel attention replicates the embedding."""
    parameters = sharded(arch("llama3-8b"), 8, embedding_tp=1, head_tp=4)
    assert parameters["model.embed_tokens.weight"].shape == (128256, 4096)
    assert parameters["lm_head.weight"].shape == (128256 // 4, 4096)


def test_norms_over_all_heads_are_whole_and_those_by_head_are_cut() -> None:
    """OLMo 2's norms are replicated, Command R+'s are sharded."""
    olmo = sharded(arch("olmo-2-7b"), 2)
    assert olmo["model.layers.0.self_attn.q_norm.weight"].shape == (4096,)
    cohere = sharded(arch("command-r-plus"), 2)
    assert cohere["model.layers.0.self_attn.q_norm.weight"].shape == (48, 128)


def test_q_k_and_v_are_one_tensor_to_an_engine_and_so_are_gate_and_up() -> None:
    """Weights and biases are joined separately; the output projection is not joined."""
    parameters = sharded(arch("qwen1.5-moe-a2.7b"), 1)
    attention, shared = "model.layers.0.self_attn", "model.layers.0.mlp.shared_expert"
    joint = {parameters[f"{attention}.{name}_proj.weight"].joint for name in "qkv"}
    assert len(joint) == 1
    assert joint != {parameters[f"{attention}.q_proj.bias"].joint}
    assert (
        parameters[f"{shared}.gate_proj.weight"].joint
        == parameters[f"{shared}.up_proj.weight"].joint
    )
    assert not parameters[f"{attention}.o_proj.weight"].joint


def test_a_vision_tower_is_cut_and_on_the_first_stage_alone() -> None:
    """Gemma 3 on two ranks: heads and feed-forwards are sharded, patches are not."""
    model = read_config(
        {
            "model_type": "gemma3",
            "text_config": {},
            "vision_config": {
                "hidden_size": 1152,
                "intermediate_size": 4304,
                "num_hidden_layers": 2,
                "num_attention_heads": 16,
                "patch_size": 14,
                "image_size": 896,
            },
        }
    )
    parameters = [one for one in sharded(model, 2).values() if one.part == "vision tower"]
    assert sum(one.numel for one in parameters) < model.tower_parameters
    patches = next(one for one in parameters if "patch_embedding.weight" in one.name)
    assert patches.shape[1:] == (3, 14, 14)
    last = ServerShard(places=range(1), embedding=False)
    assert not any(one.part == "vision tower" for one in held(model, last))
