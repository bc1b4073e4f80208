"""A user's own set-ups, ranked: those that fit first, then by their tokens a second."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from ....runfile.read import as_dict
from ....runfile.text.errors import InputError
from ....tools.read import read
from ..answers.plans import Plan, Plans, SearchedSpace, pareto_front
from ..serving.candidates import rank_servers
from .full import full_plan, tried_run
from .reasons import compared

SECTIONS = ("program", "training", "parallelism", "engine", "hardware", "model")


def rank_candidates(
    sources: Sequence[Any], price: float | None = None, tokens: int | None = None
) -> Plans:
    """Estimate each run file in full, and rank them."""
    begin = time.perf_counter()
    runs = [as_dict(read(source).file) for source in sources]
    serving = [bool(run.get("inference")) for run in runs]
    if all(serving):
        return rank_servers(runs, price, tokens)
    if any(serving):
        raise InputError("--candidates are training runs or servers, not both; rank them apart")
    settings = differing_keys(runs)
    plans = [
        full_plan(
            tried_run(run, {key: _value(run, key) for key in settings}), price=price, tokens=tokens
        )
        for run in runs
    ]
    order = sorted(plans, key=_rank_first)
    ranked = [replace(plan, rank=rank) for rank, plan in enumerate(order, 1)]
    fitting = [plan for plan in ranked if plan.fits_on_gpu]
    return Plans(
        question={"candidates": len(runs), "price": price, "tokens": tokens},
        space=SearchedSpace(
            set_ups=len(runs), feasible=len(fitting), seconds=time.perf_counter() - begin
        ),
        plans=compared(ranked),
        front=pareto_front(ranked),
    )


def _rank_first(plan: Plan) -> tuple[bool, float]:
    return not plan.fits_on_gpu, -plan.tokens_per_second


def differing_keys(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Keys of run files, as section.key, whose values are not the same in all."""
    names = dict.fromkeys(
        f"{section}.{key}"
        for run in runs
        for section in SECTIONS
        for key in (run.get(section) or {})
    )
    return [name for name in names if len({repr(_value(run, name)) for run in runs}) > 1]


def _value(run: Mapping[str, Any], name: str) -> Any:
    section, _, key = name.partition(".")
    return (run.get(section) or {}).get(key)
