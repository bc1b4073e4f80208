"""An evaluation after a step: its logits, its phase, what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator.estimates.calculator import estimate, full_estimate
from gpu_mem_calculator.ledger.remember import forget
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.training.step import evaluation as evaluation_module
from tests.corpus import sampled

CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 32000,
}
ROW = 8 * 128 * 32000 * 4  # bytes of one batch's logits in fp32

ENGINES: list[dict[str, Any]] = [
    {"type": "pytorch_ddp"},
    {"type": "fsdp", "fsdp_version": 1},
    {"type": "fsdp", "fsdp_version": 2},
    *({"type": "deepspeed", "zero_stage": stage} for stage in range(4)),
]


def run_file(evaluation: dict[str, Any] | None = None, **training: Any) -> dict[str, Any]:
    """A tiny run of short sequences, so that an evaluation is its peak."""
    usual = {"seq_len": 128, "batch_size": 1, "gradient_clipping": 0}
    more = {} if evaluation is None else {"evaluation": evaluation}
    return {
        "model": {"name": "tiny", "config": CONFIG},
        "training": {**usual, **more, **training},
        "hardware": {"gpu": "h200", "num_gpus": 1},
    }


def program(**data: Any) -> dict[str, Any]:
    """A Trainer that evaluates."""
    args = {"eval_strategy": "steps", "bf16": True, "eval_accumulation_steps": 2}
    return {
        "model": {"name": "tiny", "config": CONFIG},
        "program": {
            "tool": "transformers.Trainer",
            "args": args,
            "load": {"dtype": "float32"},
            "data": {"seq_len": 128, **data},
        },
        "hardware": {"gpu": "h200", "num_gpus": 1},
    }


@pytest.mark.parametrize(
    "evaluation", sampled([{"keep_logits": True, "batches": 3}, {}], keep=1), ids=str
)
def test_an_evaluation_is_traced(evaluation: dict[str, Any]) -> None:
    """Its peak agrees with a trace of the same loop to 0.1 %, and it is the run's."""
    pytest.importorskip("torch")
    from gpu_mem_calculator.lab.trace.run import trace

    run = run_file(evaluation)
    traced, found = trace(run, steps=1), estimate(run)
    assert traced.peak_phase == "s0.eval"
    assert traced.ledger.peak_instant().phase == "evaluation"
    assert found.allocated_bytes == pytest.approx(traced.allocated_bytes, rel=1e-3)
    assert found.peak_phase == "evaluation"


def peak_of(run: dict[str, Any]) -> int:
    """The ledger's peak of the evaluation."""
    ledger = full_estimate(run, replay=False).ledger
    return int(ledger.peak(phases=["evaluation"]))


@pytest.mark.parametrize("rows", range(17, 41, 4))
def test_logits_of_all_batches_are_joined(rows: int) -> None:
    """The last batch may be a smaller one; old, new and joined logits are alive together."""
    run = run_file({"keep_logits": True, "rows": rows})
    more = run_file({"keep_logits": True, "rows": rows + 8})
    assert ROW <= peak_of(more) - peak_of(run) <= 2 * ROW
    ledger = full_estimate(run, replay=False).ledger
    arrays = next(one for one in ledger.entries if one.name == "evaluation: arrays")
    assert arrays.place == "cpu"
    assert 8 * int(arrays.bytes) == rows * ROW


@pytest.mark.parametrize("engine", ENGINES, ids=str)
def test_every_engine_evaluates(engine: dict[str, Any]) -> None:
    """The stream is as high as the ledger, and a sharded model gathers its weights, which a larger
    model makes larger.
    """
    run = run_file({"batch_size": 64}, precision="bf16_mixed")
    run |= {"engine": engine, "hardware": {"gpu": "h200", "num_gpus": 4}}
    found = full_estimate(run)
    evaluation = next(one for one in found.result.phases if one.name == "evaluation")
    stream = evaluation.gpu_bytes / peak_of(run)
    assert stream == pytest.approx(1, rel=3e-3)
    assert found.result.peak_phase == "evaluation"
    resting = next(one.gpu_bytes for one in found.result.phases if one.name == "startup")
    assert evaluation.gpu_bytes > resting + 64 * 128 * 32000 * 8


def test_a_validation_keeps_the_models_cache() -> None:
    """Lightning's module leaves the KV cache on, and its output names it until the loss exists."""

    def evaluated(**load: bool) -> int:
        run = program(evaluates=True, eval_batch_size=64)
        run["program"] |= {"tool": "lightning", "args": {"precision": "bf16-mixed"}}
        run["program"]["load"] = {"dtype": "float32", **load}
        return peak_of(run)

    cache = 2 * 2 * 64 * 128 * 128 * 4
    assert evaluated() - evaluated(use_cache=False) == cache


def test_a_preference_evaluates_pairs() -> None:
    """A row has two answers; at most as many rows as there are."""
    run = program(evaluates=True, eval_rows=6, prompt=16)
    run["program"]["tool"] = "trl.DPOTrainer"
    run["program"]["args"] = {}
    evaluation = full_estimate(run, replay=False).resolved.run.evaluation
    assert evaluation is not None
    assert (evaluation.batch, evaluation.kept) == (12, 0)


def test_kept_logits_are_fp32_and_those_of_all_ranks() -> None:
    """Two more batches add four times their logits; a second GPU doubles them."""

    def peak(batches: int, gpus: int = 1) -> int:
        run = run_file({"keep_logits": True, "batches": batches})
        run["hardware"]["num_gpus"] = gpus
        ledger = full_estimate(run, replay=False).ledger
        return int(ledger.peak(phases=["evaluation"]))

    assert peak(6) - peak(4) == 4 * ROW
    assert peak(6, 2) - peak(4, 2) == 8 * ROW


def test_a_card_that_is_too_small_for_the_evaluation_alone() -> None:
    """The run dies at the evaluation, and the result says so."""
    without = estimate(run_file()).total_memory_per_gpu_gb
    run = run_file({"keep_logits": True, "batches": 8})
    run["hardware"] |= {"gpu_memory_bytes": int((without + 0.5) * 2**30)}
    result = estimate(run)
    assert result.verdict == "does_not_fit"
    assert result.fails_at is not None
    assert (result.fails_at.step, result.fails_at.phase) == (1, "evaluation")


@pytest.mark.parametrize(
    ("data", "kept"),
    [({}, 0), ({"compute_metrics": True, "eval_batches": 5}, 2), ({"compute_metrics": True}, 1)],
)
def test_the_trainer_keeps_logits_for_metrics(data: dict[str, Any], kept: int) -> None:
    """Until eval_accumulation_steps moves them to the host."""
    evaluation = full_estimate(program(**data), replay=False).resolved.run.evaluation
    assert evaluation is not None
    assert (evaluation.batch, evaluation.seq, evaluation.kept) == (8, 128, kept)


def test_an_evaluation_that_is_not_modelled_is_refused_or_a_limit() -> None:
    """Steps without kept logits; a compiled model."""
    wrong = run_file({"accumulation_steps": 2})
    with pytest.raises(InputError, match=r"(?s)keep_logits"):
        estimate(wrong)
    compiled = program()
    compiled["program"]["args"]["torch_compile"] = True
    assert "evaluation" not in full_estimate(compiled, replay=False).result.run.get("training", {})
    compiled["program"]["data"]["compute_metrics"] = True
    limits = [one.key for one in estimate(compiled).limits]
    assert "program.args.eval_strategy" in limits


def test_many_kept_batches_are_summed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last two of them have the peak that a walk over all has."""
    run = run_file({"keep_logits": True, "rows": 77})
    summed = peak_of(run)
    forget()
    monkeypatch.setattr(evaluation_module, "MOST_SUMMED", 100)
    assert peak_of(run) == summed
    monkeypatch.undo()
    assert peak_of(run_file({"keep_logits": True, "batches": 10**9})) > 10**6 * summed
