"""A run as Megatron-Core's arguments."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator.lab.jobs import megatron
from gpu_mem_calculator.lab.jobs.job import Job, World
from gpu_mem_calculator.lab.jobs.megatron import optimizer_arguments
from gpu_mem_calculator.lab.jobs.megatron_config import (
    model_arguments,
    refusals,
    transformer_arguments,
)
from gpu_mem_calculator.run.run import Run
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.tools.read import read
from tests.conftest import SMALL_LLAMA, small_run

NUMBERS = {
    "num_layers": 8,
    "hidden_size": 256,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "intermediate_size": 512,
    "vocab_size": 1000,
    "max_seq_len": 512,
}
GPT = {
    "gated_mlp": False,
    "normalization": "layernorm",
    "position_embedding": "learned",
    "bias": True,
    "dropout": 0.1,
    "tie_word_embeddings": True,
}
PLAIN = {
    "type": "megatron_lm",
    "transformer_implementation": "local",
    "masked_softmax_fusion": False,
    "gradient_accumulation_fusion": False,
}


def job(model: dict[str, Any] | None = None, gpus: int = 8, **sections: dict[str, Any]) -> Job:
    """A Megatron job of plain numbers with the local spec."""
    data = small_run("megatron_lm", gpus, **sections)
    data["model"] = {**NUMBERS, **(model or {})}
    data["engine"] = {**PLAIN, **sections.get("engine", {})}
    file = read(data).file
    return Job(file=file, resolved=resolve(file), world=World(device="cuda", mark=lambda _: None))


def resolved(model: dict[str, Any] | None = None, **sections: dict[str, Any]) -> Run:
    """The run of such a job."""
    return job(model, **sections).resolved.run


def family(config: dict[str, Any]) -> list[str]:
    """What is refused about a family's model."""
    data = small_run("megatron_lm", 8, engine=PLAIN)
    data["model"] = {"config": config}
    return list(refusals(resolve(read(data).file).run))


def test_a_llama() -> None:
    """Grouped heads, gated SiLU, RMS norms, rotary positions, no biases, no dropout."""
    made = transformer_arguments(resolved())
    wanted = {
        "num_layers": 8,
        "hidden_size": 256,
        "num_attention_heads": 8,
        "num_query_groups": 4,
        "kv_channels": 32,
        "ffn_hidden_size": 512,
        "gated_linear_unit": True,
        "activation_func": "silu",
        "normalization": "RMSNorm",
        "add_bias_linear": False,
        "add_qkv_bias": False,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "bias_activation_fusion": True,
        "params_dtype": "bfloat16",
        "bf16": True,
        "fp16": False,
        "recompute_granularity": None,
        "qk_layernorm": False,
    }
    assert {key: made[key] for key in wanted} == wanted
    assert model_arguments(resolved()) == {
        "vocab_size": 1024,
        "max_sequence_length": 512,
        "position_embedding_type": "rope",
        "share_embeddings_and_output_weights": False,
        "rotary_percent": 1.0,
    }


def test_one_layer_is_enough() -> None:
    """Its norms are those of the model."""
    assert transformer_arguments(resolved({"num_layers": 1}))["normalization"] == "RMSNorm"


def test_a_gpt() -> None:
    """Plain gelu with biases, layer norms, learned positions, dropout, a tied table."""
    made = transformer_arguments(resolved(GPT))
    wanted = {
        "activation_func": "gelu",
        "gated_linear_unit": False,
        "normalization": "LayerNorm",
        "add_bias_linear": True,
        "hidden_dropout": 0.1,
        "attention_dropout": 0.1,
        "bias_activation_fusion": True,
    }
    assert {key: made[key] for key in wanted} == wanted
    around = model_arguments(resolved(GPT))
    assert around["position_embedding_type"] == "learned_absolute"
    assert around["share_embeddings_and_output_weights"] is True


def test_gelu_without_biases_is_not_fused() -> None:
    """Megatron's fused gelu adds a bias, so it refuses to have none."""
    assert transformer_arguments(resolved({"gated_mlp": False}))["bias_activation_fusion"] is False


def test_axes() -> None:
    """Every axis and interleaving is passed on."""
    run = resolved(
        parallelism={
            "tensor_parallel_size": 2,
            "pipeline_parallel_size": 2,
            "sequence_parallel": True,
            "virtual_pipeline_size": 2,
        },
        training={"gradient_accumulation_steps": 4},
    )
    made = transformer_arguments(run)
    keys = ("tensor", "pipeline", "virtual_pipeline", "expert")
    assert [made[f"{key}_model_parallel_size"] for key in keys] == [2, 2, 2, 1]
    assert made["sequence_parallel"] is True
    assert "virtual_pipeline_model_parallel_size" not in transformer_arguments(resolved())


def test_the_vocabulary_is_padded_for_the_ranks() -> None:
    """As Megatron-LM pads it: to a multiple of the option times tp."""
    axes = {"tensor_parallel_size": 4}
    assert model_arguments(resolved(parallelism=axes))["vocab_size"] == 1024
    less = resolved(engine={"make_vocab_size_divisible_by": 1}, parallelism=axes)
    assert model_arguments(less)["vocab_size"] == 1000


@pytest.mark.parametrize(
    ("level", "wanted"),
    [
        ("selective", {"recompute_granularity": "selective", "recompute_modules": ["core_attn"]}),
        (
            "full",
            {
                "recompute_granularity": "full",
                "recompute_method": "uniform",
                "recompute_num_layers": 1,
            },
        ),
        (
            3,
            {
                "recompute_granularity": "full",
                "recompute_method": "block",
                "recompute_num_layers": 3,
            },
        ),
    ],
)
def test_recompute(level: Any, wanted: dict[str, Any]) -> None:
    """Three quarters of a chunk's four layers are its first three."""
    run = resolved(
        training={"activation_checkpointing": level}, parallelism={"pipeline_parallel_size": 2}
    )
    made = transformer_arguments(run)
    assert {key: made.get(key) for key in wanted} == wanted


def test_experts() -> None:
    """Experts, their width, the shared one, and tokens spread evenly."""
    model = {
        "num_experts": 8,
        "top_k": 2,
        "expert_intermediate_size": 128,
        "shared_expert_intermediate_size": 64,
    }
    made = transformer_arguments(resolved(model, parallelism={"expert_parallel_size": 4}))
    wanted = {
        "num_moe_experts": 8,
        "moe_router_topk": 2,
        "moe_ffn_hidden_size": 128,
        "moe_shared_expert_intermediate_size": 64,
        "moe_layer_freq": [1] * 8,
        "expert_model_parallel_size": 4,
        "moe_token_dispatcher_type": "allgather",
        "moe_router_force_load_balancing": True,
    }
    assert {key: made[key] for key in wanted} == wanted


def test_biases_on_queries_keys_and_values_alone() -> None:
    """Qwen 2 has them, and Megatron has a switch for that."""
    config = {
        "model_type": "qwen2",
        "num_hidden_layers": 2,
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "vocab_size": 1000,
        "max_position_embeddings": 512,
    }
    data = small_run("megatron_lm", 8, engine=PLAIN)
    data["model"] = {"config": config}
    made = transformer_arguments(resolve(read(data).file).run)
    assert (made["add_bias_linear"], made["add_qkv_bias"]) == (False, True)


def test_dense_layers_among_experts() -> None:
    """Each layer is said to be one or the other."""
    config = {
        "model_type": "qwen3_moe",
        "num_hidden_layers": 4,
        "hidden_size": 256,
        "intermediate_size": 512,
        "moe_intermediate_size": 128,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 32,
        "mlp_only_layers": [0],
        "vocab_size": 1000,
        "max_position_embeddings": 512,
    }
    data = small_run("megatron_lm", 8, engine=PLAIN)
    data["model"] = {"config": config}
    made = transformer_arguments(resolve(read(data).file).run)
    assert made["moe_layer_freq"] == [0, 1, 1, 1]
    assert (made["ffn_hidden_size"], made["moe_ffn_hidden_size"]) == (512, 128)
    assert made["qk_layernorm"] is True


def test_optimizers() -> None:
    """Adam decouples weight decay unless it is plain Adam; a step without clipping is said."""
    kinds = {}
    for name in ("adamw", "adam", "sgd", "sgd_momentum"):
        made = optimizer_arguments(job(training={"optimizer": name, "gradient_clipping": 0.0}))
        kinds[name] = (made["optimizer"], made["decoupled_weight_decay"], made.get("sgd_momentum"))
        assert made["clip_grad"] == 0.0
    assert kinds == {
        "adamw": ("adam", True, None),
        "adam": ("adam", False, None),
        "sgd": ("sgd", True, 0.0),
        "sgd_momentum": ("sgd", True, 0.9),
    }


def test_fp16_keeps_its_loss_scale() -> None:
    """A dynamic scale begins at 2³², where every step overflows and is skipped."""
    made = optimizer_arguments(job(training={"precision": "fp16_mixed"}))
    assert made["loss_scale"] == 1.0
    assert "loss_scale" not in optimizer_arguments(job())


def test_norms_of_queries_and_keys_are_over_a_head() -> None:
    """Those of Qwen3 are GPTModel's; OLMo 2's are over all heads."""
    shared = {**SMALL_LLAMA, "head_dim": 32}
    assert not family({**shared, "model_type": "qwen3"})
    assert any("attention weights" in t for t in family({**shared, "model_type": "olmo2"}))


def test_stages_loss_and_dispatch_by_megatrons_names() -> None:
    """Every option of a run reaches Megatron-Core; one that is off is left out."""
    engine = {
        "pipeline_model_parallel_layout": "Et|tt|tt|tttL",
        "microbatch_group_size_per_virtual_pipeline_stage": 3,
    }
    run = resolved(
        parallelism={"pipeline_parallel_size": 2},
        training={"gradient_accumulation_steps": 6, "loss": "megatron_fused"},
        engine=engine,
    )
    made = transformer_arguments(run)
    wanted = {
        "pipeline_model_parallel_layout": "Et|tt|tt|tttL",
        "virtual_pipeline_model_parallel_size": 2,
        "microbatch_group_size_per_vp_stage": 3,
        "cross_entropy_loss_fusion": True,
        "cross_entropy_fusion_impl": "native",
    }
    assert {key: made[key] for key in wanted} == wanted
    ends = {"decoder_first_pipeline_num_layers": 1, "decoder_last_pipeline_num_layers": 7}
    made = transformer_arguments(resolved(parallelism={"pipeline_parallel_size": 2}, engine=ends))
    assert made["num_layers_in_first_pipeline_stage"] == 1
    assert made["num_layers_in_last_pipeline_stage"] == 7
    assert "pipeline_model_parallel_layout" not in made
    assert made["cross_entropy_loss_fusion"] is False


def test_expert_options_by_megatrons_names() -> None:
    """Dispatcher, capacity, padding and the experts' own tensor parallelism."""
    options = {
        "moe_token_dispatcher_type": "alltoall",
        "moe_expert_capacity_factor": 1.5,
        "moe_pad_expert_input_to_capacity": True,
        "expert_tensor_parallel_size": 1,
    }
    axes = {"tensor_parallel_size": 2, "expert_parallel_size": 8, "sequence_parallel": True}
    model = {"num_experts": 8, "top_k": 2, "expert_intermediate_size": 128}
    made = transformer_arguments(resolved(model, parallelism=axes, engine=options))
    assert {key: made[key] for key in options} == options


def test_transformer_engines_loss_is_not_run() -> None:
    """It is not installed where programs are measured."""
    (sentence,) = refusals(resolved(training={"loss": "te_fused"}))
    assert "try 'full' or 'megatron_fused'" in sentence


class RecordedCalls:
    """Stands for Megatron's modules: every call is recorded, and gives the same object."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Any:
        def call(*_: Any, **keys: Any) -> RecordedCalls:
            self.calls.append((name, keys))
            return self

        return call


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> RecordedCalls:
    """Megatron's modules, which only record."""
    found = RecordedCalls()
    monkeypatch.setattr(megatron, "import_extra", lambda *_: found)
    for name in ("_plain_norms", "_layers"):
        monkeypatch.setattr(megatron, name, lambda *_: None)
    return found


def test_only_the_first_chunk_has_buckets(calls: RecordedCalls) -> None:
    """Megatron's training.py get_model disables them for the others."""
    megatron._wrap(job().resolved.run, None, [None] * 3)
    wrapped = [keys for name, keys in calls.calls if name == "DistributedDataParallel"]
    assert [keys["disable_bucketing"] for keys in wrapped] == [False, True, True]


@pytest.mark.parametrize(
    ("precision", "cast"), [("bf16_mixed", ["bfloat16"]), ("fp16_mixed", ["half"]), ("fp32", [])]
)
def test_a_model_is_cast_to_its_precision(
    calls: RecordedCalls, precision: str, cast: list[str]
) -> None:
    """After it has been moved to the GPU."""
    megatron._chunk(job(training={"precision": precision}), None, 0)
    names = [name for name, _ in calls.calls]
    assert names[names.index("cuda") + 1 :] == cast
