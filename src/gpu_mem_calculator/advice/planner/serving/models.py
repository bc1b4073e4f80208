"""The largest models that GPUs serve within the targets."""

from __future__ import annotations

import time
from typing import Any

import msgspec
from msgspec.structs import replace

from ....runfile.resolve.serving_question import question_keys
from ....serving import USUAL, server
from ...serving.changes import largest_models
from ..answers.plans import Plan, Plans, SearchedSpace
from ..answers.question import FASTEST
from ..answers.serving_question import ServingQuestion
from .answer import searched_plans
from .search import Progress

MOST_MODELS = 40  # that are tried; the largest of them are shown


def largest_models_plans(question: ServingQuestion, progress: Progress | None) -> Plans:
    """The best plan for each of the largest models of the catalogue, the largest first."""
    started = time.perf_counter()
    asked = replace(question, engines=question.engines or (USUAL,), goal=FASTEST, top=1)
    names = largest_names(asked, min(MOST_MODELS, 2 * question.top))
    plans: list[Plan] = []
    set_ups = 0
    for number, name in enumerate(names):
        if progress is not None:
            progress(number, len(names), name)
        found = searched_plans(replace(asked, model={"name": name}))
        set_ups += found.space.set_ups
        for one in found.plans[:1]:
            settings = {"model.name": name, **one.settings}
            plans.append(replace(one, rank=len(plans) + 1, settings=settings))
        if len(plans) == question.top:
            break
    seconds = time.perf_counter() - started
    return Plans(
        question=msgspec.to_builtins(question),
        space=SearchedSpace(set_ups=set_ups, feasible=len(plans), seconds=seconds),
        plans=plans,
        front=list(range(len(plans[:1]))),
    )


def largest_names(question: ServingQuestion, most: int) -> list[str]:
    """The largest presets whose weights the GPUs hold, the largest first, at most `most`."""
    engine = server(question.engines[0])
    keys: dict[str, Any] = {"engine": engine.name, **question_keys(engine, None, question.context)}
    data = {"model": {"name": "-"}, "inference": keys, "hardware": question.hardware}
    changes = largest_models(data, most=most)
    return [one.setting[0].partition("=")[2] for one in changes]
