"""A point of the search as a plan: its run file in full, its figures, and why it was chosen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from ....estimates.calculator import STEP, Estimate, full_estimate
from ....estimates.serving.roofline_stages import stage_layer_counts
from ....models.arch.blocks import Moe
from ....run.engine import Engine
from ....runfile.resolve.serving_split import DATA
from ....serving import server
from ....timing.serving.roofline import prompt_works, step_works
from ....timing.serving.seconds import ServingSeconds
from ..answers.plans import Plan, PlanSeconds, PlanStage, ServingFigures
from ..answers.serving_question import ServingQuestion
from .points import ServingPoint
from .reasons import reasons
from .set_up import server_run

HOUR = 3600.0


def full_plans(
    question: ServingQuestion, points: list[ServingPoint], ranked: list[ServingPoint]
) -> list[Plan]:
    """The plan of each point, in their order; `ranked` has the best point of every set-up."""
    return [full_plan(question, one, rank + 1, ranked) for rank, one in enumerate(points)]


def full_plan(
    question: ServingQuestion, one: ServingPoint, rank: int, ranked: list[ServingPoint]
) -> Plan:
    """The plan of one point; its memory is that of `calculate` on its run file."""
    found, servers = whole_run(question, one)
    plan = run_plan(question, one, found, servers)
    return replace(plan, rank=rank, why=list(reasons(question, one, ranked, servers)))


def run_plan(question: ServingQuestion, one: ServingPoint, found: Estimate, servers: int) -> Plan:
    """The plan of a run file's estimate, without its rank and why."""
    result = found.result
    hours = gpu_hours(question, one)
    return Plan(
        rank=1,
        run={name: section for name, section in result.run.items() if section},
        settings=settings(one),
        needs_bytes=needed_bytes(found),
        allocated_bytes=result.allocated_bytes,
        margin_bytes=result.margin_bytes or 0,
        headroom_bytes=result.headroom_bytes,
        fits_on_gpu=result.figures_fit,
        open=[str(one) for one in result.limits if one.adds_bytes != 0],
        step_seconds=plan_seconds(one.output),
        tokens_per_second=one.tokens_per_second,
        mfu=flops_share(one),
        gpu_hours=hours,
        cost=None if hours is None or question.price is None else hours * question.price,
        stages=list(stages(found)),
        serving=figures(question, one, found, servers),
    )


def needed_bytes(found: Estimate) -> int:
    """Bytes that the card must have; without a replay those of the ledger."""
    result = found.result
    return result.needs_bytes or result.allocated_bytes + result.outside_torch_bytes


def whole_run(question: ServingQuestion, one: ServingPoint) -> tuple[Estimate, int]:
    """The estimate of a plan's run file, and how often that file is started.

    Equal servers of an engine with data parallelism are one run file, unless the copies would share
    experts, or what joins them takes the last user's memory.
    """
    setup, copies = one.served.setup, one.replicas
    engine = server(setup.engine)
    replay = engine.serve is None
    if one.servers > 1 and joins(engine, setup.keys, one):
        joined = replace(setup, keys={**setup.keys, DATA: copies}, gpus=one.gpus)
        whole = full_estimate(server_run(question, joined, one.lengths, one.users), replay=replay)
        if whole.result.figures_fit:
            return whole, 1
    run = server_run(question, setup, one.lengths, one.batch * one.served.copies)
    return full_estimate(run, replay=replay), one.servers


def joins(engine: Engine, keys: dict[str, Any], one: ServingPoint) -> bool:
    """Whether several servers are the replicas of one."""
    arch = one.served.estimate.resolved.run.arch
    dense = not any(isinstance(layer.mlp, Moe) for layer, _, _ in arch.runs)
    return dense and DATA in engine.options and DATA not in keys


def settings(one: ServingPoint) -> dict[str, Any]:
    """The keys in which plans differ."""
    setup = one.served.setup
    return {"engine": setup.engine, **setup.keys, "replicas": one.replicas, "users": one.users}


def figures(
    question: ServingQuestion, one: ServingPoint, found: Estimate, servers: int
) -> ServingFigures:
    """The figures of a plan for serving."""
    served, lengths = one.served, one.lengths
    each = one.gpus * question.price / HOUR if question.price is not None else None
    return ServingFigures(
        users=one.users,
        users_per_replica=one.batch,
        most_users=one.replicas * served.most_users(lengths),
        replicas=one.replicas,
        servers=servers,
        gpus=one.gpus,
        context=lengths.context,
        prompt_len=lengths.prompt,
        new_tokens=lengths.new,
        kv_tokens=found.result.serving.kv_tokens if found.result.serving else 0,
        first_token_seconds=plan_seconds(one.first),
        tokens_per_second_bound=one.replicas * served.bound(lengths, one.batch),
        cost_per_million_tokens=None if each is None else 1e6 * each / one.tokens_per_second,
    )


def plan_seconds(seconds: ServingSeconds) -> PlanSeconds:
    """Seconds as a plan has them."""
    return PlanSeconds(
        estimate=seconds.estimate, low=seconds.low, high=seconds.high, parts=dict(seconds.parts)
    )


def gpu_hours(question: ServingQuestion, one: ServingPoint) -> float | None:
    """GPU-hours of all output tokens asked for."""
    if question.tokens is None:
        return None
    return one.gpus * question.tokens / one.tokens_per_second / HOUR


def flops_share(one: ServingPoint) -> float:
    """Operations of prompts and answers over what the cards could do in 16 bits."""
    replica, lengths, batch = one.served.replica, one.lengths, one.batch
    stages_of = len(replica.stages)
    prompts = prompt_works(replica, lengths.prompt, 1)
    steps = step_works(replica, lengths.prompt + lengths.new // 2, batch)
    works = [
        batch / lengths.new * sum(first.flops.values()) + sum(step.flops.values())
        for first, step in zip(prompts, steps, strict=True)
    ]
    return sum(works) / stages_of / one.output.estimate / replica.card.rate("bf16")


def stages(found: Estimate) -> Iterator[PlanStage]:
    """Memory of a rank of each pipeline stage."""
    layers = stage_layer_counts(found.resolved.run, found.resolved.engine)
    for number, (count, ledger) in enumerate(zip(layers, found.ledgers, strict=True)):
        peak = int(ledger.peak(phases=STEP))
        yield PlanStage(stage=number, layers=count, allocated_bytes=peak)
