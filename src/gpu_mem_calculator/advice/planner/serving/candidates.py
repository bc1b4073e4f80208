"""A user's own servers, ranked: those that fit first, then by their output tokens per second."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from ....estimates.calculator import full_estimate
from ....estimates.serving.speed import no_speed, sequence_lengths
from ....runfile.text.errors import InputError
from ..answers.plans import Plan, Plans, SearchedSpace
from ..answers.serving_question import ServingQuestion
from .plan import run_plan
from .points import ServingPoint, front, point
from .reasons import longest_part
from .set_up import Lengths, ServedSetup
from .space import ServingSetup


def rank_servers(
    runs: Sequence[dict[str, Any]], price: float | None = None, tokens: int | None = None
) -> Plans:
    """Estimate each server in full, and rank them; without `batch_size` with all users that fit."""
    begin = time.perf_counter()
    found = [_candidate(run, price, tokens) for run in runs]
    ordered = sorted(found, key=lambda pair: _fits_and_fast(pair[1]))
    plans = [replace(plan, rank=rank) for rank, (_, plan) in enumerate(ordered, 1)]
    points = [one for one, plan in ordered if plan.fits_on_gpu]
    edge = front(points)
    return Plans(
        question={"candidates": len(runs), "price": price, "tokens": tokens},
        space=SearchedSpace(
            set_ups=len(runs), feasible=len(points), seconds=time.perf_counter() - begin
        ),
        plans=plans,
        front=[points.index(one) for one in edge],
    )


def _fits_and_fast(plan: Plan) -> tuple[bool, float]:
    return not plan.fits_on_gpu, -plan.tokens_per_second


def _candidate(
    run: dict[str, Any], price: float | None, tokens: int | None
) -> tuple[ServingPoint, Plan]:
    """The point of a run file, and its plan."""
    estimate = full_estimate(run)
    why_not = no_speed(estimate)
    if why_not:
        raise InputError(why_not)
    given: Mapping[str, Any] = run["inference"]
    engine, gpus = estimate.resolved.engine.name, estimate.resolved.hardware.num_gpus
    keys = {key: value for key, value in given.items() if key != "engine"}
    setup = ServingSetup(engine=engine, keys=keys, gpus=gpus)
    served = ServedSetup(setup, {**run, "hardware": run.get("hardware", {})}, estimate)
    prompt, context = sequence_lengths(estimate)
    lengths = Lengths(prompt, max(1, context - prompt))
    asked = given.get("batch_size")
    batch = served.most_users(lengths) if asked is None else -(-asked // served.copies)
    one = point(served, lengths, max(1, batch), 1)
    question = ServingQuestion(
        model=run["model"], hardware=run.get("hardware", {}), price=price, tokens=tokens
    )
    plan = run_plan(question, one, estimate, servers=1)
    return one, replace(plan, why=[longest_part(one)])
