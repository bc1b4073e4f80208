"""What engines hold of a vision tower while a model that sees trains on text."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from gpu_mem_calculator.core.calculator import full_estimate
from gpu_mem_calculator.core.errors import InputError
from gpu_mem_calculator.core.resolve import resolve
from gpu_mem_calculator.core.runfile import read
from gpu_mem_calculator.ledger.ledger import GRAD, OPTIM, PARAM, Ledger
from gpu_mem_calculator.run.phases import OPTIMIZER

TEXT = {
    "model_type": "qwen2_5_vl_text",
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 2048,
    "max_position_embeddings": 1024,
}
EYES = {
    "depth": 6,
    "hidden_size": 640,
    "intermediate_size": 1280,
    "num_heads": 8,
    "out_hidden_size": 512,
}
SMALL = {
    "model_type": "qwen2_5_vl",
    "text_config": TEXT,
    "vision_config": EYES,
    "tie_word_embeddings": False,
}
TOWER = 33_238_912  # as torch counts them in transformers 5.17.0


def a_run(engine: dict[str, Any], gpus: int = 4, **training: Any) -> dict[str, Any]:
    """A run of the small model."""
    return {
        "model": {"config": SMALL},
        "engine": engine,
        "hardware": {"gpu": "h100-80gb-sxm", "num_gpus": gpus},
        "training": {"seq_len": 64, **training},
    }


def ledgers(data: dict[str, Any]) -> tuple[Ledger, Ledger]:
    """The ledgers of a run with the tower, and of the text model alone."""
    resolved = resolve(read(data))
    blind = replace(resolved.run, arch=replace(resolved.run.arch, tower=()))
    return resolved.engine.ledger(resolved.run), resolved.engine.ledger(blind)


def more(data: dict[str, Any]) -> dict[str, int]:
    """Bytes of each kind in the optimizer's step that the tower adds."""
    both = []
    for ledger in ledgers(data):
        last = [instant for instant in ledger.instants if instant.phase == OPTIMIZER][-1]
        both.append(ledger.parts(last))
    whole, blind = both
    return {kind: int(whole[kind] - blind[kind]) for kind in (PARAM, GRAD, OPTIM)}


@pytest.mark.parametrize("gpus", [1, 4])
def test_torch_keeps_weights_alone(gpus: int) -> None:
    """As torch 2.11 does on a text batch: no gradient, and so no state."""
    engine = {"type": "pytorch_ddp"}
    assert more(a_run(engine, gpus)) == {PARAM: 4 * TOWER, GRAD: 0, OPTIM: 0}


def test_fsdp_shards_the_weights() -> None:
    """Every parameter's rows are divided by the ranks; what has no rows for all is padded."""
    added = more(a_run({"type": "fsdp"}))
    assert TOWER <= added[PARAM] < 1.01 * TOWER
    assert (added[GRAD], added[OPTIM]) == (0, 0)


@pytest.mark.parametrize(("stage", "weights", "states"), [(0, 2, 12), (1, 2, 3), (2, 2, 3)])
def test_deepspeed_trains_every_parameter(stage: int, weights: int, states: int) -> None:
    """Masters and Adam's moments are made for every parameter that requires a gradient."""
    added = more(a_run({"type": "deepspeed", "zero_stage": stage}))
    assert added[PARAM] == pytest.approx(weights * TOWER, rel=1e-3)
    assert added[OPTIM] == pytest.approx(states * TOWER, rel=1e-3)


def test_zero_3_shards_all_of_it() -> None:
    """Weights, masters and states, a quarter each on four ranks."""
    added = more(a_run({"type": "deepspeed", "zero_stage": 3}))
    assert added[PARAM] == pytest.approx(2 * TOWER / 4, rel=0.01)
    assert added[OPTIM] == pytest.approx(12 * TOWER / 4, rel=0.01)


@pytest.mark.parametrize(
    "engine", [{"type": "pytorch_ddp"}, {"type": "fsdp"}, {"type": "deepspeed", "zero_stage": 2}]
)
def test_beside_adapters_the_tower_is_frozen(engine: dict[str, Any]) -> None:
    """Weights, and nothing else."""
    added = more(a_run(engine, lora={"r": 8}))
    assert added[PARAM] > 0
    assert (added[GRAD], added[OPTIM]) == (0, 0)


def test_quantization_packs_the_towers_projections() -> None:
    """4 bits a parameter and scales, except for the patch convolution, norms and biases."""
    packed = more(
        a_run({"type": "pytorch_ddp"}, 1, lora={"r": 8}, quantization="nf4", precision="bf16_pure")
    )
    assert TOWER // 2 < packed[PARAM] < 0.65 * TOWER


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("gpus", [1, 4, 64])
def test_the_replay_agrees_with_the_ledger(stage: int, gpus: int) -> None:
    """Also where a rank's slice is all tower."""
    data = a_run({"type": "deepspeed", "zero_stage": stage, "reduce_bucket_size": 10**6}, gpus)
    ledger, replayed = (full_estimate(data, replay=on).result.allocated_bytes for on in (0, 1))
    assert replayed == pytest.approx(ledger, rel=0.03)


def test_the_answer_names_what_is_assumed() -> None:
    """Text alone, the tower's count, and what the engine makes for it."""
    result = full_estimate(a_run({"type": "pytorch_ddp"}, 1), replay=False).result
    (sentence,) = result.warnings
    assert "text alone are assumed: images add activations that are not modelled" in sentence
    assert f"the {TOWER:,} parameters of the vision tower are weights alone" in sentence
    assert result.num_parameters == result.trainable_parameters == 39_796_608


@pytest.mark.parametrize(
    ("engine", "sentence"),
    [
        ({"type": "megatron_lm"}, "vision tower of this model is not modelled under Megatron-LM"),
        (
            {"type": "fsdp", "cpu_offload": True},
            "cpu_offload=true is not modelled for a model with",
        ),
        ({"type": "deepspeed", "zero_stage": 0}, "not modelled at zero_stage 0 in fp32"),
    ],
)
def test_an_engine_that_does_not_count_it_refuses(engine: dict[str, Any], sentence: str) -> None:
    """One sentence instead of an answer without the tower."""
    with pytest.raises(InputError, match=sentence):
        resolve(read(a_run(engine, precision="fp32" if "zero_stage" in engine else "bf16_mixed")))
