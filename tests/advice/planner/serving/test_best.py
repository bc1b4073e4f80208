"""Plans for serving: what is found, how it is ranked, and that memory is `calculate`'s."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator.advice.planner.answers.plans import INTERRUPTED, Plan, Plans, PlansSoFar
from gpu_mem_calculator.advice.planner.answers.serving_question import ServingQuestion
from gpu_mem_calculator.advice.planner.serving.best import plan_serving
from gpu_mem_calculator.advice.planner.training.candidates import rank_candidates
from gpu_mem_calculator.estimates.calculator import estimate
from gpu_mem_calculator.runfile.text.errors import InputError

GPUS = {"gpu": "h100-80gb-sxm", "num_gpus": 4}


def ask(model: str = "llama3-8b", **given: Any) -> Plans:
    """The plans of a small question, with vLLM unless another engine is given."""
    keys = {"hardware": GPUS, "engines": ("vllm",), "context": 4096, "new_tokens": 512, **given}
    return plan_serving(ServingQuestion(model={"name": model}, **keys))


def figures(plan: Plan) -> Any:
    """A plan's figures of serving."""
    assert plan.serving is not None
    return plan.serving


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt_llm", "tgi", "llamacpp"])
def test_a_plan_is_a_run_file_with_the_memory_of_calculate(engine: str) -> None:
    """A plan is a run file with the memory of calculate."""
    plan = ask(engines=(engine,), users=8, top=1).plans[0]
    result = estimate(plan.run)
    assert result.fits_on_gpu
    assert plan.fits_on_gpu
    assert (result.needs_bytes, result.allocated_bytes) == (plan.needs_bytes, plan.allocated_bytes)
    assert result.serving is not None
    assert result.serving.users * figures(plan).servers >= 8


def test_the_most_tokens_per_second_come_first_and_targets_hold() -> None:
    """The most tokens per second come first and targets hold."""
    found = ask(latency=0.03)
    rates = [plan.tokens_per_second for plan in found.plans[:10]]
    assert rates == sorted(rates, reverse=True)
    assert all(plan.step_seconds.estimate <= 0.03 for plan in found.plans)
    for plan in found.plans:
        one, seconds = figures(plan), plan.step_seconds
        assert one.users <= one.most_users
        asked_again = one.users / seconds.estimate
        if one.users_per_replica > 1:
            assert plan.tokens_per_second == pytest.approx(asked_again)
        else:
            assert 0.5 * asked_again < plan.tokens_per_second < asked_again
        assert seconds.low <= seconds.estimate <= seconds.high
        assert sum(seconds.parts.values()) == pytest.approx(seconds.estimate)
        assert plan.tokens_per_second <= 1.001 * one.tokens_per_second_bound


def test_a_stricter_latency_serves_fewer_tokens() -> None:
    """A stricter latency serves fewer tokens."""
    strict, loose = (ask(latency=latency).plans[0] for latency in (0.015, 0.06))
    assert strict.tokens_per_second < loose.tokens_per_second


def test_users_are_divided_over_the_replicas() -> None:
    """Users are divided over the replicas."""
    for plan in ask(users=50).plans:
        one = figures(plan)
        assert one.users_per_replica == -(-50 // one.replicas)
        assert one.gpus == 4


def test_replicas_of_a_dense_model_are_one_run_file() -> None:
    """Replicas of a dense model are one run file."""
    plans = ask(users=64, fix={"inference.tensor_parallel_size": 1}).plans
    joined = next(p for p in plans if "pipeline_parallel_size" not in p.settings)
    assert joined.run["inference"]["data_parallel_size"] == 4
    assert (figures(joined).servers, figures(joined).replicas) == (1, 4)


def test_the_fewest_gpus_meet_the_target_and_fewer_do_not() -> None:
    """The fewest gpus meet the target and fewer do not."""
    asked: dict[str, Any] = {"throughput": 6000.0, "latency": 0.04, "hardware": {"gpu": "h100"}}
    fewest = ask(goal="fewest_gpus", **asked).plans[0]
    count = figures(fewest).gpus
    assert fewest.tokens_per_second >= 6000
    assert count > 1
    less = {**asked, "hardware": {"gpu": "h100", "num_gpus": count - 1}}
    assert not ask(**less).plans


def test_the_longest_context_fits_and_a_longer_one_does_not() -> None:
    """The longest context fits and a longer one does not."""
    gpu = {"gpu": "rtx-4090", "num_gpus": 1}
    plan = ask("llama3.1-8b", goal="longest_context", context=None, users=4, hardware=gpu).plans[0]
    context = figures(plan).context
    assert context > 1024
    keys = {**plan.run["inference"], "prompt_len": None, "new_tokens": None}
    longer = {**plan.run, "inference": {**keys, "max_seq_len": context + 512}}
    assert not estimate(longer).fits_on_gpu


def test_the_largest_models_are_presets_that_fit() -> None:
    """The largest models are presets that fit."""
    gpu = {"gpu": "rtx-4090", "num_gpus": 1}
    question = ServingQuestion(model={}, hardware=gpu, context=2048, goal="largest_model", top=1)
    plans = plan_serving(question).plans
    assert [plan.rank for plan in plans] == [1]
    assert plans[0].settings["model.name"] == plans[0].run["model"]["name"]
    assert all(estimate(plan.run).fits_on_gpu for plan in plans)


def test_knobs_say_what_a_change_brings() -> None:
    """Knobs say what a change brings."""
    best = ask(latency=0.03).plans[0]
    changes = {next(iter(knob.change)): knob for knob in best.knobs}
    fp8 = changes["inference.quantization"]
    assert fp8.needs_bytes <= 0
    assert fp8.tokens_per_second is not None
    assert fp8.tokens_per_second > 0


def test_where_nothing_starts_the_changes_let_it_start() -> None:
    """Where nothing starts the changes let it start."""
    alone = {"gpu": "h100", "num_gpus": 1}
    found = ask("llama3-70b", hardware=alone)
    assert not found.plans
    assert any("inference.tensor_parallel_size" in one.change for one in found.if_nothing_fits)


def test_where_a_target_is_too_strict_the_nearest_one_is_met() -> None:
    """Where a target is too strict the nearest one is met."""
    found = ask(latency=0.0001)
    assert not found.plans
    latency = next(one.change for one in found.if_nothing_fits if "latency" in one.change)
    assert ask(latency=latency["latency"]).plans


def test_the_front_has_no_plan_that_is_worse_in_both() -> None:
    """The front has no plan that is worse in both."""
    found = ask()
    points = [
        (found.plans[i].step_seconds.estimate, found.plans[i].tokens_per_second)
        for i in found.front
    ]
    assert len(points) > 3
    assert points == sorted(points)
    assert [rate for _, rate in points] == sorted(rate for _, rate in points)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"latency": -1.0}, "latency=-1.0 must be more than 0"),
        ({"hardware": {"gpu_memory_gb": 80}}, "no GPU is named"),
        ({"context": 100, "new_tokens": 100}, "leaves no prompt"),
        ({"fix": {"training.batch_size": 1}}, "training.batch_size is not a key of a server"),
        (
            {"fix": {"inference.n_ubatch": 512}},
            "no engine that is asked for has inference.n_ubatch",
        ),
        ({"model": "opt-2.7b", "engines": ("tgi",)}, "TGI does not serve opt with a paged cache"),
    ],
)
def test_what_means_nothing_is_refused(given: dict[str, Any], sentence: str) -> None:
    """What means nothing is refused."""
    with pytest.raises(InputError, match=sentence):
        ask(**given)


def test_a_mixture_of_experts_shares_its_experts() -> None:
    """A mixture of experts shares its experts."""
    found = ask("mixtral-8x7b", users=32)
    sizes = {plan.settings.get("expert_parallel_size", 1) for plan in found.plans}
    assert {1, 4} <= sizes


def test_no_plan_of_transformers_needs_more_than_the_card_has() -> None:
    """Its memory depends on the batch, and the allocator decides."""
    keys: dict[str, Any] = {"engines": ("transformers",), "hardware": {"gpu": "rtx-4090"}}
    assert ask("qwen2.5-0.5b", users=16, **keys).plans[0].fits_on_gpu
    assert not ask("qwen2.5-0.5b", users=4096, **keys).plans


def server_run(engine: str, **keys: Any) -> dict[str, Any]:
    """A run file of a server."""
    inference = {"engine": engine, "max_seq_len": 4096, **keys}
    return {"model": {"name": "llama3-8b"}, "inference": inference, "hardware": {"gpu": "h100"}}


def test_candidates_that_fit_come_first_then_the_fastest() -> None:
    """A batch that does not fit is last; fp8 weights are faster."""
    runs = [
        server_run("vllm", batch_size=10**6),
        server_run("vllm", batch_size=32),
        server_run("vllm", batch_size=32, quantization="fp8"),
    ]
    plans = rank_candidates(runs).plans
    assert [plan.run["inference"].get("quantization") for plan in plans] == ["fp8", None, None]
    assert [plan.fits_on_gpu for plan in plans] == [True, True, False]
    assert [plan.rank for plan in plans] == [1, 2, 3]


def test_training_runs_and_servers_are_ranked_apart() -> None:
    """One sentence."""
    training = {"model": {"name": "llama3-8b"}, "hardware": {"gpu": "h100"}}
    with pytest.raises(InputError, match="training runs or servers, not both"):
        rank_candidates([training, server_run("vllm")])


def test_progress_is_told_before_each_set_up() -> None:
    """How many are done, how many there are, and the engine."""
    told: list[tuple[int, int, str]] = []
    question = ServingQuestion(model={"name": "llama3-8b"}, hardware=GPUS, engines=("tgi",))
    plan_serving(question, lambda *words: told.append(words))
    assert [done for done, _, _ in told] == list(range(len(told)))
    assert {total for _, total, _ in told} == {len(told)}


def test_what_is_found_before_an_interrupt_is_kept() -> None:
    """Plans of the set-ups that were evaluated, and that the list is not complete."""
    question = ServingQuestion(model={"name": "llama3-8b"}, hardware=GPUS, engines=("tgi",))

    def progress(done: int, total: int, text: str) -> None:
        if done == total - 1:
            raise KeyboardInterrupt

    with pytest.raises(PlansSoFar) as caught:
        plan_serving(question, progress)
    assert caught.value.plans.plans
    assert caught.value.plans.limits == [INTERRUPTED]


def test_replicas_that_do_not_fit_together_are_servers_of_their_own() -> None:
    """Gemma 2B on 16 A30: the last user's memory goes to what joins the replicas."""
    keys = {"tensor_parallel_size": 2, "pipeline_parallel_size": 4, "kv_cache_dtype": "fp8"}
    fixed = {f"inference.{key}": value for key, value in keys.items()}
    gpus = {"gpu": "a30", "num_gpus": 16}
    plan = ask("gemma-2b", hardware=gpus, context=32768, new_tokens=1024, fix=fixed).plans[0]
    assert estimate(plan.run).fits_on_gpu
    assert figures(plan).replicas == 2


def test_more_gpus_or_weaker_targets_are_offered() -> None:
    """More GPUs meet a throughput; with two targets that are too strict, both are weakened."""
    found = ask(throughput=1e5, latency=0.05)
    changes: dict[str, Any] = {}
    for one in found.if_nothing_fits:
        changes |= one.change
    assert changes["hardware.num_gpus"] > 4
    assert ask(throughput=changes["throughput"], latency=0.05).plans
    both = ask(throughput=1e6, latency=1e-4).if_nothing_fits[-1].change
    assert set(both) == {"throughput", "latency"}
    assert ask(**both).plans


def test_too_many_users_are_answered_with_those_that_fit() -> None:
    """The largest number that memory holds."""
    found = ask(users=10**6)
    users = next(one.change["users"] for one in found.if_nothing_fits if "users" in one.change)
    assert ask(users=users).plans


def test_the_largest_batch_serves_most_users() -> None:
    """More users than the plan with the most tokens per second within a latency."""
    most = ask(goal="largest_batch").plans[0]
    fast = ask(latency=0.02).plans[0]
    assert figures(most).users > figures(fast).users


def test_cost_is_the_price_of_the_gpu_hours() -> None:
    """And a million tokens cost a thousandth of a billion."""
    plan = ask(users=64, price=2.0, tokens=10**9).plans[0]
    assert plan.gpu_hours is not None
    assert plan.cost == pytest.approx(2 * plan.gpu_hours)
    assert figures(plan).cost_per_million_tokens == pytest.approx(plan.cost / 1000)


def test_a_limit_of_sequences_is_named_before_more_gpus() -> None:
    """Memory holds 300 users of 1,024 tokens; vLLM runs 256 sequences at once unless told."""
    gpus = {"gpu": "a100-80gb-sxm", "num_gpus": 1}
    found = ask("llama3.1-8b", hardware=gpus, users=300, context=1024, new_tokens=256)
    changes = [one.change for one in found.if_nothing_fits]
    assert not found.plans
    assert changes[0] == {"inference.max_num_seqs": 300}
    assert not any("hardware.num_gpus" in one for one in changes)
    fixed = ask(
        "llama3.1-8b",
        hardware=gpus,
        users=300,
        context=1024,
        new_tokens=256,
        fix={"inference.max_num_seqs": 300},
    )
    assert fixed.plans
