"""What one rank has of a model: every cut, every family."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator.families import read_config
from gpu_mem_calculator.model.arch import Arch
from gpu_mem_calculator.weights.shards import ServerShard, ShardedParameter, held
from tests.serving.every_family import NAMES, family
from tests.serving.vllm_runs import arch


def whole(model: Arch, **cut: Any) -> ServerShard:
    """All layers."""
    return ServerShard(places=range(len(model.layers)), **cut)


def cut_by(model: Arch, ranks: int, **more: Any) -> dict[str, ShardedParameter]:
    """Every parameter under tensor parallelism."""
    shard = whole(model, tp=ranks, attention_tp=ranks, expert_tp=ranks, **more)
    return {one.name: one for one in held(model, shard)}


def steering(model: Arch) -> int:
    """Elements that steer routers, which are buffers of the model."""
    return sum(b.shape[0] for b in model.buffers if b.name.endswith("e_score_correction_bias"))


@pytest.mark.parametrize("name", NAMES)
def test_one_rank_alone_has_every_parameter(name: str) -> None:
    """And the tower of pictures, and the biases that steer routers."""
    model = family(name)
    found = sum(one.numel for one in held(model, whole(model)))
    assert found == model.num_parameters + model.tower_parameters + steering(model)


@pytest.mark.parametrize("name", NAMES)
def test_two_ranks_together_have_every_parameter_at_least_once(name: str) -> None:
    """And no more than twice."""
    model = family(name)
    all_of_it = sum(one.numel for one in held(model, whole(model)))
    one = sum(part.numel for part in cut_by(model, 2).values())
    assert all_of_it <= 2 * one <= 2 * all_of_it


@pytest.mark.parametrize("name", NAMES)
def test_stages_of_a_pipeline_have_the_model_between_them(name: str) -> None:
    """A tied head is a copy on the last stage."""
    model = family(name)
    middle = len(model.layers) // 2
    first = ServerShard(places=range(middle), head=False)
    last = ServerShard(places=range(middle, len(model.layers)), embedding=False)
    found = sum(one.numel for shard in (first, last) for one in held(model, shard))
    copied = 0 if model.head is not None else model.vocab * model.hidden
    assert found == sum(one.numel for one in held(model, whole(model))) + copied


def test_key_value_heads_are_repeated_where_ranks_are_more() -> None:
    """Qwen2.5-0.5B has 2; on 4 ranks each has one."""
    found = cut_by(arch("qwen2.5-0.5b"), 4)
    assert found["model.layers.0.self_attn.k_proj.weight"].shape == (64, 896)
    assert found["model.layers.0.self_attn.q_proj.bias"].shape == (224,)


def test_a_fused_projection_has_its_rank_s_queries_and_repeated_keys() -> None:
    """Falcon-7B has one key-value head; Falcon-40B eight."""
    small = read_config({"model_type": "falcon", "num_hidden_layers": 1, "hidden_size": 512,
                         "num_attention_heads": 8, "multi_query": True, "bias": True})  # fmt: skip
    found = cut_by(small, 4)
    fused = found["transformer.h.0.self_attention.query_key_value.weight"]
    assert fused.shape == (2 * 64 + 2 * 64, 512)
    assert found["transformer.h.0.self_attention.query_key_value.bias"].shape == (256,)
    assert found["transformer.h.0.self_attention.dense.bias"].shape == (512,)
    large = cut_by(arch("falcon-40b"), 8)
    assert large["transformer.h.0.self_attention.query_key_value.weight"].shape == (
        (16 + 2) * 64, 8192)  # fmt: skip


def test_latent_ranks_are_whole_and_heads_are_cut() -> None:
    """DeepSeek-V3 on 8 ranks."""
    found = cut_by(arch("deepseek-v3"), 8)
    name = "model.layers.3.self_attn"
    assert found[f"{name}.q_a_proj.weight"].shape == (1536, 7168)
    assert found[f"{name}.kv_a_proj_with_mqa.weight"].shape == (576, 7168)
    assert found[f"{name}.kv_b_proj.weight"].shape == (16 * 256, 512)
    assert found[f"{name}.o_proj.weight"].shape == (7168, 16 * 128)


def test_routers_are_whole_experts_spread_and_cut_shared_ones_cut() -> None:
    """DeepSeek-V3: 256 experts over 8 ranks, or each cut in 8."""
    model = arch("deepseek-v3")
    spread = {one.name: one for one in held(model, whole(model, tp=8, attention_tp=8, ep=8))}
    name = "model.layers.3.mlp"
    assert spread[f"{name}.experts.gate_up_proj"].shape == (32, 4096, 7168)
    assert spread[f"{name}.gate.weight"].shape == (256, 7168)
    assert spread[f"{name}.gate.e_score_correction_bias"].bits == 32
    assert spread[f"{name}.shared_experts.gate_proj.weight"].shape == (256, 7168)
    assert cut_by(model, 8)[f"{name}.experts.down_proj"].shape == (256, 7168, 256)
    alone = cut_by(model, 8, shared_tp=1)
    assert alone[f"{name}.shared_experts.gate_proj.weight"].shape == (2048, 7168)


def test_inputs_of_an_expert_are_known_whichever_way_it_is_stored() -> None:
    """gpt-oss stores (in, out), Mixtral (out, in); biases are no experts."""
    oss, mixtral = cut_by(arch("gpt-oss-20b"), 1), cut_by(arch("mixtral-8x7b"), 1)
    assert oss["model.layers.0.mlp.experts.gate_up_proj"].matrix == (32, 5760, 2880)
    assert oss["model.layers.0.mlp.experts.gate_up_proj_bias"].role == "other"
    assert mixtral["model.layers.0.mlp.experts.down_proj"].matrix == (8, 4096, 14336)
    assert cut_by(arch("gpt2"), 1)["transformer.h.0.mlp.c_fc.weight"].matrix == (1, 3072, 768)


def test_a_shared_expert_s_gate_is_a_router() -> None:
    """Qwen1.5-MoE: never quantized, whole on each rank."""
    found = cut_by(arch("qwen1.5-moe-a2.7b"), 2)
    gate = found["model.layers.0.mlp.shared_expert_gate.weight"]
    assert (gate.role, gate.shape) == ("router", (1, 2048))


def test_groups_of_a_state_space_are_repeated() -> None:
    """Mamba-2-2.7B has one group of B and C, which each rank needs."""
    found = cut_by(arch("mamba2-2.7b"), 2)
    name = "backbone.layers.0.mixer"
    inner, state, heads = 5120, 128, 80
    rows = inner // 2 + inner // 2 + 2 * state + heads // 2
    assert found[f"{name}.in_proj.weight"].shape == (rows, 2560)
    assert found[f"{name}.conv1d.weight"].shape == (inner // 2 + 2 * state, 1, 4)
    assert found[f"{name}.conv1d.weight"].role == "other"


def test_a_vocabulary_is_padded_and_cut_and_a_tied_head_is_one_tensor() -> None:
    """Gemma 3: 262208 rows; a head's bias goes with its rows."""
    found = cut_by(arch("gemma3-1b"), 8, vocab_multiple=64)
    rows = found["model.embed_tokens.weight"].shape[0]
    assert rows == -(-262144 // 64) * 64 // 8
    assert "lm_head.weight" not in found
    phi = cut_by(arch("phi-2"), 2)
    assert phi["lm_head.bias"].shape == (51200 // 2,)


def test_embedding_and_head_may_be_cut_otherwise_than_the_rest() -> None:
    """Data-parallel attention keeps a whole embedding on each rank."""
    found = cut_by(arch("llama3-8b"), 8, embedding_tp=1, head_tp=4)
    assert found["model.embed_tokens.weight"].shape == (128256, 4096)
    assert found["lm_head.weight"].shape == (128256 // 4, 4096)


def test_norms_over_all_heads_are_whole_and_those_by_head_are_cut() -> None:
    """OLMo 2 and Command R+."""
    olmo = cut_by(arch("olmo-2-7b"), 2)
    assert olmo["model.layers.0.self_attn.q_norm.weight"].shape == (4096,)
    cohere = cut_by(arch("command-r-plus"), 2)
    assert cohere["model.layers.0.self_attn.q_norm.weight"].shape == (48, 128)


def test_q_k_and_v_are_one_tensor_to_an_engine_and_so_are_gate_and_up() -> None:
    """Shared experts apart from others."""
    found = cut_by(arch("qwen1.5-moe-a2.7b"), 1)
    attention, shared = "model.layers.0.self_attn", "model.layers.0.mlp.shared_expert"
    joint = {found[f"{attention}.{name}_proj.weight"].joint for name in "qkv"}
    assert len(joint) == 1
    assert joint != {found[f"{attention}.q_proj.bias"].joint}
    assert found[f"{shared}.gate_proj.weight"].joint == found[f"{shared}.up_proj.weight"].joint
    assert not found[f"{attention}.o_proj.weight"].joint


def test_a_vision_tower_is_cut_and_on_the_first_stage_alone() -> None:
    """Gemma 3 with pictures on two ranks: heads and feed-forwards, not patches."""
    model = read_config({"model_type": "gemma3", "text_config": {}, "vision_config": {
        "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 2,
        "num_attention_heads": 16, "patch_size": 14, "image_size": 896}})  # fmt: skip
    found = [one for one in cut_by(model, 2).values() if one.part == "vision tower"]
    assert sum(one.numel for one in found) < model.tower_parameters
    patches = next(one for one in found if "patch_embedding.weight" in one.name)
    assert patches.shape[1:] == (3, 14, 14)
    last = ServerShard(places=range(1), embedding=False)
    assert not any(one.part == "vision tower" for one in held(model, last))
