"""Plans for training: what is proposed fits, is a run file, and is ordered by time."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from gpu_mem_calculator import estimate
from gpu_mem_calculator.advice.planner.answers.plans import INTERRUPTED, Plans, PlansSoFar
from gpu_mem_calculator.advice.planner.answers.question import (
    FEWEST_GPUS,
    LARGEST_BATCH,
    LONGEST_CONTEXT,
    PlanQuestion,
)
from gpu_mem_calculator.advice.planner.training.best import plan_training
from gpu_mem_calculator.advice.planner.training.candidates import rank_candidates
from gpu_mem_calculator.advice.planner.training.trials import IN_FULL
from gpu_mem_calculator.runfile.text.errors import InputError


def asked(**changes: Any) -> PlanQuestion:
    """A small question."""
    values: dict[str, Any] = {
        "model": {"name": "qwen2.5-0.5b"},
        "hardware": {"gpu": "rtx-4090", "num_gpus": 2},
        "seq_len": 1024,
        "global_batch": 16,
        "engines": ("fsdp",),
        "fix": {
            "training.loss": "full",
            "training.optimizer_implementation": "fused",
            "engine.cpu_offload": False,
            "engine.sharding_strategy": "full_shard",
        },
        "top": 3,
    }
    return PlanQuestion(**values | changes)


@cache
def planned() -> Plans:
    """The plans of the small question."""
    return plan_training(asked())


def test_plans_fit_and_come_fastest_first() -> None:
    """Every plan fits with its margin; ranks count from 1 in the order of time."""
    plans = planned().plans
    assert plans
    assert all(plan.fits_on_gpu for plan in plans)
    assert [plan.rank for plan in plans] == list(range(1, len(plans) + 1))
    seconds = [plan.step_seconds.estimate for plan in plans]
    assert seconds == sorted(seconds)


def test_the_best_of_each_engine_is_among_the_plans() -> None:
    """However many set-ups of one engine are faster."""
    both = plan_training(asked(engines=("deepspeed", "megatron_lm"), fix={}, top=1)).plans
    alone = plan_training(asked(engines=("deepspeed",), fix={}, top=1)).plans[0]
    best = next(one for one in both if one.run["engine"]["type"] == "deepspeed")
    assert best.run == alone.run
    assert best.rank > IN_FULL


def test_the_ranked_list_comes_before_its_replays() -> None:
    """Then they are filled in; in the end the plans are those that nobody watched."""
    known: list[Plans] = []
    plans = plan_training(asked(), changed=lambda so_far: known.append(so_far()))
    ranked = next(one for one in known if len(one.plans) > 1)
    assert not any(one.replayed for one in ranked.plans)
    assert ranked.front
    replayed = [sum(one.replayed for one in each.plans) for each in known]
    assert replayed[-1] == len(plans.plans)
    assert plans.plans == planned().plans
    settings = [one.settings for one in ranked.plans]
    assert plans.plans[0].settings in settings


def test_a_plan_is_a_run_file() -> None:
    """Its own estimate has the figures of the plan, and it has the batch asked for."""
    plan = planned().plans[0]
    result = estimate(plan.run)
    assert result.needs_bytes == plan.needs_bytes
    training, ranks = plan.run["training"], plan.run["parallelism"]["data_parallel_size"]
    assert training["batch_size"] * training["gradient_accumulation_steps"] * ranks == 16


def test_the_parts_of_a_step_add_up() -> None:
    """Their sum is the estimate, which is inside its interval."""
    for plan in planned().plans:
        seconds = plan.step_seconds
        assert sum(seconds.parts.values()) == pytest.approx(seconds.estimate)
        assert seconds.low <= seconds.estimate <= seconds.high
        rate = 16 * 1024 / seconds.estimate
        assert plan.tokens_per_second == pytest.approx(rate)
        assert 0 < plan.mfu < 1


def test_the_front_trades_memory_for_time() -> None:
    """Each plan of the front is slower than the one before it, and needs less."""
    answer = planned()
    front = [answer.plans[index] for index in answer.front]
    assert answer.front[0] == 0
    needs = [plan.needs_bytes for plan in front]
    assert needs == sorted(needs, reverse=True)


def test_what_is_found_before_an_interrupt_is_kept() -> None:
    """The fastest plans, which are those of the whole answer; none, and it is only interrupted."""

    def interrupts(at: str) -> Any:
        def progress(text: str, part: float) -> None:
            if text.startswith(at):
                raise KeyboardInterrupt

        return progress

    with pytest.raises(PlansSoFar) as caught:
        plan_training(asked(), interrupts("replaying, 3"))
    found = caught.value.plans
    assert [plan.run for plan in found.plans] == [plan.run for plan in planned().plans[:3]]
    assert found.limits == [INTERRUPTED]
    assert found.space.set_ups == planned().space.set_ups
    with pytest.raises(KeyboardInterrupt) as nothing:
        plan_training(asked(), interrupts("searching"))
    assert nothing.type is KeyboardInterrupt


def test_each_faster_plan_is_told_while_others_are_tried() -> None:
    """One before the whole space is searched; the last one is the first of the answer."""
    told: list[Plans] = []
    answer = plan_training(asked(), found=told.append)
    early, first = told
    assert early.space.set_ups < first.space.set_ups == answer.space.set_ups
    assert early.plans[0].fits_on_gpu
    assert early.plans[0].why == []
    assert first.plans[0].run == answer.plans[0].run
    assert [plan.run for plan in answer.plans] == [plan.run for plan in planned().plans]


def test_an_early_plan_is_kept_where_the_search_is_interrupted() -> None:
    """It is not the answer's first one, but it fits."""

    def progress(text: str, part: float) -> None:
        if text.startswith("searching, 1 "):
            raise KeyboardInterrupt

    with pytest.raises(PlansSoFar) as caught:
        plan_training(asked(), progress, lambda plans: None)
    (plan,) = caught.value.plans.plans
    assert plan.fits_on_gpu
    assert estimate(plan.run).needs_bytes == plan.needs_bytes


def test_tokens_and_a_price_give_hours_and_a_cost() -> None:
    """GPU-hours are tokens over the rate of one GPU."""
    fix = {**asked().fix, "training.batch_size": 1}
    plan = plan_training(asked(tokens=10**9, price=2.0, fix=fix)).plans[0]
    hours = 10**9 / plan.tokens_per_second * 2 / 3600
    assert plan.gpu_hours == pytest.approx(hours)
    assert plan.cost == pytest.approx(2 * hours)


def test_fixed_keys_are_in_every_plan() -> None:
    """A fixed choice and a fixed size."""
    fix = {"training.activation_checkpointing": "full", "training.batch_size": 2}
    for plan in plan_training(asked(fix={**asked().fix, **fix})).plans:
        assert plan.run["training"]["activation_checkpointing"] == "full"
        assert plan.run["training"]["batch_size"] == 2


def test_nothing_fits_names_changes() -> None:
    """The smallest changes save what they say."""
    hardware = {"gpu": "rtx-4090", "num_gpus": 1}
    answer = plan_training(
        asked(model={"name": "llama3.2-3b"}, hardware=hardware, seq_len=2048, global_batch=4)
    )
    assert answer.plans == []
    changes = [one.change for one in answer.if_nothing_fits]
    assert any("hardware.num_gpus" in change for change in changes)


def test_no_set_up_is_possible() -> None:
    """A batch that no GPU count divides is one sentence."""
    with pytest.raises(InputError, match="no set-up is possible"):
        plan_training(asked(global_batch=3))


@pytest.mark.parametrize(
    ("goal", "key"),
    [
        (LARGEST_BATCH, "training.batch_size"),
        pytest.param(FEWEST_GPUS, "hardware.num_gpus", marks=pytest.mark.proof),
        pytest.param(LONGEST_CONTEXT, "training.seq_len", marks=pytest.mark.proof),
    ],
)
def test_goals(goal: str, key: str) -> None:
    """The answer to a goal fits."""
    fix = {**asked().fix, "training.activation_checkpointing": "full"}
    fix |= {} if goal == LARGEST_BATCH else {"training.batch_size": 1}
    answer = plan_training(asked(goal=goal, top=1, fix=fix))
    section, _, name = key.partition(".")
    assert answer.plans[0].fits_on_gpu
    assert answer.plans[0].run[section][name] >= 1


def test_candidates_are_ranked_by_rate_and_those_that_do_not_fit_come_last() -> None:
    """The reasons say what is missing."""
    run = planned().plans[0].run
    large = {**run, "training": {**run["training"], "batch_size": 64}}
    small = {**run, "training": {**run["training"], "activation_checkpointing": "full"}}
    answer = rank_candidates([large, small, run])
    assert [plan.fits_on_gpu for plan in answer.plans] == [True, True, False]
    assert "GiB are missing" in answer.plans[-1].why[0]
    assert answer.plans[0].tokens_per_second >= answer.plans[1].tokens_per_second
    assert "training.batch_size" in answer.plans[0].settings


def test_knobs_change_one_thing() -> None:
    """Sizes and choices around the first plan; full recompute saves memory and takes time."""
    fix = {key: value for key, value in asked().fix.items() if key != "engine.sharding_strategy"}
    first = plan_training(asked(fix={**fix, "training.batch_size": 1})).plans[0]
    changes = {tuple(one.change.items()): one for one in first.knobs}
    assert all(len(change) == 1 for change in changes)
    recompute = changes[(("training.activation_checkpointing", "full"),)]
    assert recompute.needs_bytes < 0 < recompute.step_seconds
    assert any(key == "engine.sharding_strategy" for ((key, _),) in changes)
