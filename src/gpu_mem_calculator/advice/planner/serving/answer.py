"""The plans of a question about serving, from a search over its set-ups."""

from __future__ import annotations

import time

import msgspec
from msgspec.structs import replace

from ..answers.plans import Plans, SearchedSpace
from ..answers.serving_question import ServingQuestion
from .changes import smallest_changes
from .knobs import knob_effects
from .plan import full_plans
from .points import front, meets
from .search import Progress, chosen_points, search_servers, searched_axes


def searched_plans(question: ServingQuestion, progress: Progress | None = None) -> Plans:
    """The best plans, and every plan on the front; the smallest changes where there is none."""
    started = time.perf_counter()
    search = search_servers(question, progress)
    ranked = chosen_points(search)
    shown = ranked[: question.top]
    edge = [one for one in front(search.points) if meets(question, one)]
    kept = [*shown, *(one for one in edge if one not in shown)]
    plans = full_plans(question, kept, ranked)
    if plans:
        plans[0] = replace(plans[0], knobs=knob_effects(search, kept[0]))
    return Plans(
        question=msgspec.to_builtins(question),
        space=SearchedSpace(
            set_ups=len(search.setups) - len(search.served) + len(search.points),
            feasible=sum(meets(question, one) for one in search.points),
            seconds=time.perf_counter() - started,
            axes=searched_axes(search.setups),
        ),
        plans=plans,
        front=[kept.index(one) for one in edge],
        if_nothing_fits=[] if plans else smallest_changes(search),
    )
