"""What plans accept is what `resolve` accepts, and what they leave out is said."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator.advice.planner.answers.question import PlanQuestion
from gpu_mem_calculator.advice.planner.training import trials
from gpu_mem_calculator.advice.planner.training.best import plan_training
from gpu_mem_calculator.advice.planner.training.search import Found, search
from gpu_mem_calculator.advice.planner.training.space import base_file, structures
from gpu_mem_calculator.advice.planner.training.structures import run_file
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.read import read
from gpu_mem_calculator.training.engines import engines
from gpu_mem_calculator.training.optimizers import OPTIMIZERS
from tests.corpus import sampled


def asked(**changes: Any) -> PlanQuestion:
    """A small question with more than one GPU."""
    values: dict[str, Any] = {
        "model": {"name": "qwen2.5-0.5b"},
        "hardware": {"gpu": "a100-80gb-sxm", "num_gpus": 4},
        "seq_len": 1024,
        "global_batch": 8,
        "top": 2,
    }
    return PlanQuestion(**values | changes)


def found(question: PlanQuestion) -> Found:
    """What the search finds."""
    return search(list(structures(question)), question.sequences)


@pytest.mark.parametrize("engine", ["deepspeed", "megatron_deepspeed", "fsdp", "megatron_lm"])
def test_every_set_up_of_a_search_can_be_resolved(engine: str) -> None:
    """The rules of the search are those of a run file: pipelines, losses and offload together."""
    question = asked(engines=(engine,))
    kept = found(question).kept
    assert kept
    for one in kept[:: max(1, len(kept) // 60)]:
        settings = one.structure.settings
        resolve(read(run_file(base_file(question), settings, one.sizes, question.sequences)).file)


def test_deepspeed_has_plans_on_several_gpus() -> None:
    """With and without pipelines, in full."""
    fix = {"engine.offload_optimizer": "none", "engine.offload_param": "none"}
    plans = plan_training(
        asked(engines=("deepspeed",), fix={**fix, "training.activation_checkpointing": "none"})
    )
    assert plans.plans
    assert not any("left out" in one for one in plans.limits)


def test_a_set_up_that_is_refused_after_all_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not end the plan."""
    real, calls = trials.tried_run, []

    def refuse_first(*arguments: Any, **keys: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 1:
            raise InputError("training.loss is refused")
        return real(*arguments, **keys)

    monkeypatch.setattr(trials, "tried_run", refuse_first)
    plans = plan_training(asked(engines=("pytorch_ddp",)))
    assert plans.plans
    assert "1 set-ups were left out: training.loss is refused" in plans.limits


@pytest.mark.parametrize("optimizer", sampled(list(OPTIMIZERS), 6))
def test_every_optimizer_has_plans(optimizer: str) -> None:
    """Under every engine that has it; where none is measured, it is said whose time it takes."""
    names = [name for name, one in engines().items() if optimizer in one.optimizers]
    assert names
    fix = {"training.optimizer": optimizer, "training.loss": "full"}
    for name in names:
        assert found(asked(engines=(name,), fix=fix)).kept, name


def test_the_reason_of_a_refusal_is_shown() -> None:
    """What the engine says, or which batches the GPUs can share."""
    fix = {"training.optimizer": "muon"}
    with pytest.raises(InputError, match=r"'muon' is not one PyTorch FSDP has"):
        plan_training(asked(engines=("fsdp",), fix=fix))
    with pytest.raises(InputError, match="try --global-batch 8 or 12"):
        plan_training(asked(engines=("fsdp",), global_batch=10))


def test_what_is_not_searched_is_said() -> None:
    """Layers that stages cannot share, overlap, the host of Megatron-LM, ties."""
    model = {"name": "qwen2.5-0.5b", "num_layers": 23}
    fix = {"training.loss": "full", "training.activation_checkpointing": "selective"}
    plans = plan_training(asked(model=model, engines=("megatron_lm",), fix=fix))
    limits, first = plans.limits, plans.plans[0]
    assert any("23 layers do not divide into 2, 4 pipeline stages" in one for one in limits)
    assert any("tp_comm_overlap is not searched" in one for one in limits)
    assert any("under Megatron-LM the host's seconds" in one for one in limits)
    assert plans.plans[1].step_seconds.estimate < first.step_seconds.high
    assert first.why[-1].startswith("Within the interval of plan 1: plans 2 to ")


def test_a_card_without_bf16_is_named() -> None:
    """And so are Transformer Engine, and an optimizer that is timed as another."""
    hardware = {"gpu": "t4", "num_gpus": 2}
    fix = {
        "training.loss": "full",
        "training.optimizer": "adam",
        "training.precision": "bf16_mixed",
        "training.activation_checkpointing": "full",
    }
    engines_asked = ("pytorch_ddp", "megatron_lm")
    limits = plan_training(asked(hardware=hardware, engines=engines_asked, fix=fix)).limits
    assert any("NVIDIA T4 has no bf16 units" in one for one in limits)
    assert any("Transformer Engine is documented for Ampere" in one for one in limits)
    assert "the step of adam was not measured, and is timed as that of adamw foreach" in limits
