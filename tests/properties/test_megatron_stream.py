"""Megatron's streams of allocations: whatever the run, they reach what the ledger says."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from gpu_mem_calculator.estimates.calculator import STEP
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.runfile.resolve.resolved_run import ResolvedRun
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.read import read
from tests.corpus import sampled
from tests.streams import highest, rolled_and_written

NUM_RUNS = 60
GPT = {
    "num_layers": 8,
    "hidden_size": 512,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "intermediate_size": 2048,
    "gated_mlp": False,
    "normalization": "layernorm",
    "position_embedding": "learned",
    "bias": True,
    "dropout": 0.1,
    "vocab_size": 4096,
    "max_seq_len": 1024,
}
LLAMA = {
    "num_layers": 16,
    "hidden_size": 512,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "intermediate_size": 1408,
    "vocab_size": 4096,
    "max_seq_len": 1024,
}
EXPERTS = LLAMA | {"num_experts": 8, "top_k": 2, "expert_intermediate_size": 384}
SHARED = EXPERTS | {"num_layers": 8, "shared_expert_intermediate_size": 512}
PADDED = {"moe_expert_capacity_factor": 1.5, "moe_pad_expert_input_to_capacity": True}
LATENT = {
    "config": {
        "model_type": "deepseek_v3",
        "hidden_size": 512,
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "intermediate_size": 1024,
        "moe_intermediate_size": 256,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "first_k_dense_replace": 2,
        "q_lora_rank": 96,
        "kv_lora_rank": 64,
        "qk_nope_head_dim": 32,
        "qk_rope_head_dim": 16,
        "v_head_dim": 32,
        "vocab_size": 4096,
        "max_position_embeddings": 1024,
        "tie_word_embeddings": False,
    }
}


def drawn(rng: Random, engine: str) -> dict[str, Any]:
    """A run file, which Megatron may refuse."""
    pick = rng.choice
    model: dict[str, Any] = {**pick([GPT, GPT, LLAMA, LLAMA, EXPERTS, SHARED, LATENT])}
    if "config" not in model:
        model["tie_word_embeddings"] = pick([True, False])
    tp, pp, dp = pick([1, 1, 2, 4]), pick([1, 1, 2, 4]), pick([1, 2, 4])
    cp = pick([1, 1, 1, 2]) if engine == "megatron_lm" else 1
    local = pick([True, False])
    options: dict[str, Any] = {
        "type": engine,
        "transformer_implementation": "local" if local else "transformer_engine",
        "masked_softmax_fusion": pick([True, False]),
    }
    parallelism = {
        "tensor_parallel_size": tp,
        "pipeline_parallel_size": pp,
        "context_parallel_size": cp,
        "expert_parallel_size": pick([1, 1, 2, 4]),
        "sequence_parallel": tp > 1 and pick([True, False]),
    }
    if engine == "megatron_lm":
        options["distributed_optimizer"] = pick([True, False])
        options["gradient_accumulation_fusion"] = pick([True, False])
        options["deallocate_pipeline_outputs"] = pick([True, False])
        parallelism["virtual_pipeline_size"] = pick([1, 1, 2]) if pp > 1 else 1
    else:
        options["zero_stage"] = pick([0, 1, 2, 3])
        options["offload_optimizer"] = pick(["none", "none", "cpu"])
    training = {
        "batch_size": pick([1, 2, 3]),
        "seq_len": pick([256, 512, 1024]),
        "gradient_accumulation_steps": pick([1, 2, 4, 8]),
        "activation_checkpointing": pick(["none", "selective", "full", 2]),
        "precision": pick(["bf16_mixed", "bf16_mixed", "fp16_mixed", "fp32"]),
        "optimizer": pick(["adamw", "adamw", "sgd", "sgd_momentum"]),
    }
    if engine == "megatron_lm":
        training["loss"] = pick(["full", "full", "megatron_fused", "te_fused"])
        options |= drawn_options(rng, model, pp)
    return {
        "model": model,
        "training": training,
        "parallelism": parallelism,
        "engine": options,
        "hardware": {"gpu": "h200", "num_gpus": tp * pp * dp * cp},
    }


def drawn_options(rng: Random, model: dict[str, Any], pp: int) -> dict[str, Any]:
    """Megatron-LM's options for stages, attention, experts and optimizer instances."""
    pick = rng.choice
    options: dict[str, Any] = {
        "attention_backend": pick(["auto", "auto", "unfused"]),
        "num_distributed_optimizer_instances": pick([1, 1, 1, 2]),
        "microbatch_group_size_per_virtual_pipeline_stage": pick([None, None, 5]),
        **pick([{}, {}, {"transformer_engine_version": "2.1"}]),
    }
    if "num_experts" in model:
        options |= {
            "moe_token_dispatcher_type": pick(["allgather", "alltoall"]),
            "expert_tensor_parallel_size": pick([None, None, 1, 2]),
            **pick([{}, {"moe_expert_capacity_factor": 0.5}, PADDED]),
        }
    if pp > 1:
        layers = model.get("num_layers") or model["config"]["num_hidden_layers"]
        ends = {"decoder_first_pipeline_num_layers": 1}
        both = {"account_for_embedding_in_pipeline_split": True}
        both["account_for_loss_in_pipeline_split"] = True
        options |= pick(
            [{}, {}, ends, both, {"pipeline_model_parallel_layout": layout(rng, layers, pp)}]
        )
        options["defer_embedding_wgrad_compute"] = pick([False, False, True])
    return {key: value for key, value in options.items() if value is not None}


def layout(rng: Random, layers: int, pp: int) -> str:
    """A random layout of the layers over one or two chunks a stage."""
    stages = pp * rng.choice([1, 2])
    cuts = sorted(rng.choice(range(layers + 1)) for _ in range(stages - 1))
    counts = [high - low for low, high in zip([0, *cuts], [*cuts, layers], strict=True)]
    return "E" + "|".join("t" * count for count in counts) + "L"


def random_run(engine: str, index: int) -> ResolvedRun:
    """Run `index` of an engine, always the same one; what is refused is drawn again."""
    rng = Random(f"{engine}/{index}")
    while True:
        try:
            return resolve(read(drawn(rng, engine)).file)
        except InputError:
            continue


@pytest.mark.parametrize("engine", ["megatron_lm", "megatron_deepspeed"])
@pytest.mark.parametrize("index", sampled(range(NUM_RUNS), keep=30))
def test_a_stream_is_as_high_as_its_ledger(engine: str, index: int) -> None:
    """On every stage of any run, to the byte."""
    found = random_run(engine, index)
    for stage in range(int(found.run.mesh.pp)):
        rolled, asked = rolled_and_written(found, stage)
        assert highest(asked) == int(rolled.peak(phases=STEP)), (found.run.options, stage)
