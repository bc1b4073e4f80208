"""Families that train: the estimate's tensors against torch's on fake tensors.

Each model is small and shaped like its family; the batch is large enough that activations count.
"""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from gpu_mem_calculator.models.families import read_config
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.read import read
from tests.corpus import sampled
from tests.models.families.test_shapes import CASES

WAYS = [("bf16_mixed", "sdpa"), ("bf16_pure", "eager")]
MOST = 0.1  # percent of the bytes that tensors ask for at the peak
TYPES = ["sliding_attention", "full_attention"]
SMALL = {
    "num_hidden_layers": 2,
    "vocab_size": 1000,
    "hidden_size": 192,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "intermediate_size": 640,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LATENT = {
    "num_key_value_heads": 6,
    "q_lora_rank": 64,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 48,
    "head_dim": None,
}
MODELS: dict[str, dict[str, Any]] = {
    "smollm3": {"no_rope_layers": [1, 0], "tie_word_embeddings": True},
    "seed_oss": {},
    "apertus": {},
    "exaone4": {"sliding_window": 100, "layer_types": TYPES},
    "stablelm": {"partial_rotary_factor": 0.25, "use_parallel_residual": True},
    "olmo": {},
    "olmo3": {"sliding_window": 100, "layer_types": TYPES},
    "ernie4_5": {},
    "arcee": {},
    "nemotron": {},
    "jais2": {},
    "hunyuan_v1_dense": {},
    "ministral": {"sliding_window": 100, "layer_types": TYPES},
    "ministral3": {},
    "dots1": {
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 128,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
        "n_group": 1,
        "topk_group": 1,
    },
    "glm4_moe_lite": {
        **LATENT,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 128,
        "n_shared_experts": 1,
        "n_group": 1,
        "topk_group": 1,
    },
    "minicpm3": LATENT,
    "granitemoe": {"num_local_experts": 8, "num_experts_per_tok": 2, "intermediate_size": 128},
    "granitemoehybrid": {
        "layer_types": ["attention"] * 2,
        "num_local_experts": 0,
        "num_experts_per_tok": 0,
        "shared_intermediate_size": 640,
        "position_embedding_type": "rope",
    },
    "gpt_bigcode": {"n_positions": 512},
    "minimax_m2": {"num_local_experts": 8, "num_experts_per_tok": 2, "intermediate_size": 128},
}


def run(family: str, precision: str, attention: str, **training: Any) -> dict[str, Any]:
    """A run file of one GPU."""
    config = {"model_type": family, **SMALL, **MODELS[family]}
    return {
        "model": {"config": {key: value for key, value in config.items() if value is not None}},
        "training": {
            "batch_size": 2,
            "seq_len": 192,
            "optimizer": "sgd",
            "precision": precision,
            "attention": attention,
            "gradient_clipping": 0.0,
            **training,
        },
        "engine": {"type": "pytorch_ddp"},
        "hardware": {"gpu": "h200", "num_gpus": 1},
    }


@pytest.mark.parametrize(
    ("family", "precision", "attention"),
    sampled([(family, *way) for family in MODELS for way in WAYS], keep=4),
)
def test_the_estimate_is_what_a_trace_holds(family: str, precision: str, attention: str) -> None:
    """The asked peak is within a tenth of a percent of the trace's."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from tests.random_runs.compare import compare_run

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # transformers' own
        compared = compare_run(run(family, precision, attention))
    assert abs(compared.asked_pct) <= MOST, compared.phases


@pytest.mark.parametrize("family", MODELS)
def test_a_family_that_is_traced_trains(family: str) -> None:
    """Every family of this file has a training estimate."""
    assert resolve(read(run(family, "bf16_mixed", "sdpa")).file).model.arch.trains


@pytest.mark.parametrize("case", ["hunyuan_v1_moe", "ernie4_5_moe-defaults"])
def test_a_router_that_stays_in_fp32_is_refused(case: str) -> None:
    """Their experts' router ignores the model's dtype, so there is no training estimate."""
    file = run("seed_oss", "bf16_pure", "sdpa") | {"model": {"config": CASES[case]}}
    with pytest.raises(InputError, match=r"activations of \w+ models are not modelled"):
        resolve(read(file).file)


def test_granite_4_trains_where_it_is_granite() -> None:
    """Mamba layers, experts and a model without positions keep the refusal."""
    dense = run("granitemoehybrid", "fp32", "sdpa")["model"]["config"]
    assert read_config(dense).trains
    for other in (
        {"layer_types": ["mamba", "attention"], "mamba_n_heads": 12},
        {"num_local_experts": 8, "num_experts_per_tok": 2},
        {"position_embedding_type": None},
    ):
        assert not read_config(dense | other).trains


def test_stablelm_with_norms_for_each_head_is_refused() -> None:
    """`qk_layernorm` runs one norm after the other, which is not modelled."""
    assert read_config({"model_type": "stablelm"}).trains
    assert not read_config({"model_type": "stablelm", "qk_layernorm": True}).trains


def test_rotary_embedding_is_left_out_where_the_family_leaves_it_out() -> None:
    """SmolLM3 by its list, EXAONE 4 where a layer does not slide."""
    for family in ("smollm3", "exaone4"):
        arch = read_config(run(family, "fp32", "sdpa")["model"]["config"])
        assert [getattr(layer.mixer, "rotary_dim", None) for layer in arch.layers] == [32, 0]
