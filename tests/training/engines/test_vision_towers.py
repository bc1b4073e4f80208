"""What engines hold of a vision tower while a model that sees is trained."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from gpu_mem_calculator.estimates.calculator import full_estimate
from gpu_mem_calculator.ledger.ledger import GRAD, OPTIM, PARAM, Ledger
from gpu_mem_calculator.run.phases import OPTIMIZER
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.read import read

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
    resolved = resolve(read(data).file)
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
def test_torch_trains_every_parameter(gpus: int) -> None:
    """Weights, gradients and Adam's moments in fp32."""
    engine = {"type": "pytorch_ddp"}
    added = more(a_run(engine, gpus))
    assert added[PARAM] == added[GRAD] == 4 * TOWER
    assert added[OPTIM] == pytest.approx(8 * TOWER, rel=1e-4)  # a step count for each tensor


def test_fsdp_shards_all_of_it() -> None:
    """Every parameter's rows are divided by the ranks; what has no rows for all is padded."""
    added = more(a_run({"type": "fsdp"}))
    assert TOWER <= added[PARAM] < 1.01 * TOWER
    assert added[GRAD] == added[PARAM]
    assert added[OPTIM] == pytest.approx(2 * added[PARAM], rel=1e-3)


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


@pytest.mark.parametrize("engine", ["pytorch_ddp", "fsdp"])
def test_a_frozen_tower_has_weights_alone(engine: str) -> None:
    """freeze_vision_tower leaves it without gradients and states."""
    added = more(a_run({"type": engine}, freeze_vision_tower=True))
    assert added[PARAM] > 0
    assert (added[GRAD], added[OPTIM]) == (0, 0)
    result = full_estimate(a_run({"type": engine}, freeze_vision_tower=True)).result
    assert f"the {TOWER:,} parameters of the vision tower are frozen" in result.warnings[0]
    assert result.trainable_parameters == result.num_parameters - TOWER


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


@pytest.mark.parametrize("gpus", [1, 4])
@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("engine", ["pytorch_ddp", "fsdp"])
def test_the_stream_has_the_tower(engine: str, gpus: int, steps: int) -> None:
    """What the replay allocates for the tower is what the ledger counts."""
    added = []
    for replay in (False, True):
        seeing = a_run({"type": engine}, gpus, gradient_accumulation_steps=steps)
        blind = {**seeing, "model": {"config": {**TEXT, "model_type": "qwen2"}}}
        runs = (full_estimate(one, replay=replay).result for one in (seeing, blind))
        whole, text = (result.allocated_bytes for result in runs)
        added.append(whole - text)
    assert added[1] == pytest.approx(added[0], rel=0.02)
    assert added[0] > 14 * TOWER / gpus


def test_the_answer_names_what_is_not_counted() -> None:
    """The tower's count, that it is trained, and its activations."""
    result = full_estimate(a_run({"type": "pytorch_ddp"}, 1), replay=False).result
    (sentence,) = result.warnings
    assert f"the {TOWER:,} parameters of the vision tower are trained" in sentence
    (limit,) = result.limits
    assert (limit.key, limit.adds_bytes, limit.saves_bytes) == ("images", None, 0)
    assert result.verdict == "cannot_tell"
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
        ({"type": "deepspeed"}, "freeze_vision_tower is not modelled under DeepSpeed"),
    ],
)
def test_an_engine_that_does_not_count_it_refuses(engine: dict[str, Any], sentence: str) -> None:
    """One sentence instead of an answer without the tower."""
    with pytest.raises(InputError, match=sentence):
        resolve(
            read(
                a_run(
                    engine,
                    precision="fp32" if "zero_stage" in engine else "bf16_mixed",
                    freeze_vision_tower="freeze" in sentence,
                )
            ).file
        )


def test_a_deepspeed_pipeline_refuses_it() -> None:
    """Which stage would have the tower is not modelled; without a pipeline nothing is said."""
    data = a_run({"type": "deepspeed"})
    assert resolve(read(data).file).run.arch.tower
    data["parallelism"] = {"pipeline_parallel_size": 2}
    with pytest.raises(InputError, match="is not modelled in a DeepSpeed pipeline"):
        resolve(read(data).file)
