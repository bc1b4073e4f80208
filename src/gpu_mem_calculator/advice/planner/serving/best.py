"""The plans of a question about serving: which engine, parallel sizes and formats serve most, or
need fewest GPUs, with what each change costs or saves.

Where the question asks for the largest model, models are tried from the largest; where nothing
fits, the smallest changes with which something would.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import ceil, floor
from typing import Any

import msgspec
from msgspec.structs import replace

from ....estimates.calculator import Estimate, full_estimate
from ....estimates.serving.speed import find_card_rates
from ....runfile.config import GPUConfig
from ....runfile.read import with_settings
from ....runfile.resolve.serving_question import question_keys
from ....runfile.resolve.serving_split import DATA, GPUS_PER_NODE, PIPELINE, TENSOR
from ....runfile.text.errors import InputError
from ....serving import USUAL, server
from ...serving.changes import Server, largest_models
from ...serving.server_remedies import remedies
from ..answers.plans import (
    INTERRUPTED,
    KnobEffect,
    Plan,
    Plans,
    PlansSoFar,
    SearchedSpace,
    SmallestChange,
    SoFar,
)
from ..answers.question import FASTEST, LARGEST_MODEL
from ..answers.serving_question import ServingQuestion
from .plan import full_plans, needed_bytes
from .points import (
    MOST_GPUS,
    ServingPoint,
    fast_enough,
    fewest_servers,
    front,
    largest_batch,
    meets,
    point,
    points_on,
)
from .search import (
    Progress,
    ServingSearch,
    begun_search,
    chosen_points,
    evaluate_servers,
    searched_axes,
)
from .set_up import ServedSetup, served_setup, server_run
from .space import CACHE, EXPERTS, SECTION, WEIGHTS

LIMIT = "max_num_seqs"
TARGETS = ("latency", "first_token", "throughput", "users")


def smallest_changes(search: ServingSearch) -> list[SmallestChange]:
    """Changes of memory where no server starts, else of the GPUs and of the targets."""
    if not search.served:
        return list(memory_changes(search))
    alone = list(weaker_targets(search))
    wider = list(more_sequences(search)) or list(more_gpus(search))
    return [*wider, *(alone or all_targets_weaker(search))]


def more_sequences(search: ServingSearch) -> Iterator[SmallestChange]:
    """The option that limits the sequences of a server, where its memory holds all users."""
    question, found = search.question, []
    for served in search.served if question.users is not None else ():
        servers, rest = divmod(search.gpus, served.setup.gpus)
        if rest or not servers or LIMIT not in served.estimate.resolved.engine.options:
            continue
        batch = -(-(question.users or 0) // (servers * served.copies))
        if batch > served.most_users(search.lengths):
            try:
                run = with_settings(served.run, [f"inference.{LIMIT}={batch}"])
                wider = ServedSetup(served.setup, run, full_estimate(run, replay=False))
            except InputError:
                continue  # more than the server takes
            holds = batch <= wider.most_users(search.lengths) and wider.estimate.result.fits_on_gpu
            if holds and fast_enough(question, point(wider, search.lengths, batch, servers)):
                found.append(batch)
    if found:
        yield SmallestChange(change={f"inference.{LIMIT}": min(found)}, saves_bytes=0)


def memory_changes(search: ServingSearch) -> Iterator[SmallestChange]:
    """What lets a server start, from the set-up on the most GPUs."""
    base = _widest(search)
    for change in remedies(Server.of(base)):
        changed = full_estimate(with_settings(base.result.run, change.setting), replay=False)
        yield SmallestChange(
            change=dict(_pair(setting) for setting in change.setting),
            saves_bytes=needed_bytes(base) - needed_bytes(changed),
        )


def _widest(search: ServingSearch) -> Estimate:
    """The estimate of the set-up on the most GPUs that its engine accepts.

    Where none is accepted, the sentence of the first engine is raised.
    """
    refused: list[InputError] = []
    for setup in sorted(search.setups, key=lambda one: -one.gpus):
        run = server_run(search.question, setup, search.lengths, search.question.users)
        try:
            return full_estimate(run, replay=False)
        except InputError as error:
            refused.append(error)
    if refused:
        raise refused[0]
    keys = ", ".join((*search.question.fix, *search.question.vary))
    raise InputError(f"no engine that is asked for has {keys}; leave it out, or use --serve any")


def _pair(setting: str) -> tuple[str, Any]:
    key, _, text = setting.partition("=")
    try:
        return key, json.loads(text)
    except ValueError:
        return key, text


def more_gpus(search: ServingSearch) -> Iterator[SmallestChange]:
    """The fewest GPUs that meet every target."""
    found = [
        fewest_servers(search.question, one, search.lengths, MOST_GPUS) for one in search.served
    ]
    counts = [one.gpus for one in found if one is not None]
    if counts and min(counts) > search.gpus:
        yield SmallestChange(change={"hardware.num_gpus": min(counts)}, saves_bytes=0)


def weaker_targets(search: ServingSearch) -> Iterator[SmallestChange]:
    """Each target that alone is too strict, with the best value that can be met."""
    for name in TARGETS:
        if getattr(search.question, name) is None:
            continue
        asked = replace(search.question, **{name: None})
        points = [one for one in _every_point(search, asked) if meets(asked, one)]
        if points:
            yield SmallestChange(change={name: reached(name, points)}, saves_bytes=0)


def all_targets_weaker(search: ServingSearch) -> Iterator[SmallestChange]:
    """What the plan with the most tokens per second meets of all targets."""
    given = [name for name in TARGETS if getattr(search.question, name) is not None]
    asked = replace(search.question, **dict.fromkeys(given))
    points = list(_every_point(search, asked))
    if points:
        best = max(points, key=lambda one: one.tokens_per_second)
        met = {name: reached(name, [best]) for name in given}
        yield SmallestChange(change=met, saves_bytes=0)


def _every_point(search: ServingSearch, asked: ServingQuestion) -> Iterator[ServingPoint]:
    """The points of every set-up that starts, for other targets."""
    for served in search.served:
        yield from points_on(asked, served, search.lengths, search.gpus)


def reached(name: str, points: list[ServingPoint]) -> float:
    """The best value of a target over some points, rounded to what they still meet."""
    if name == "users":
        return max(one.users for one in points)
    if name == "throughput":
        return floor(max(one.tokens_per_second for one in points))
    seconds = (one.output if name == "latency" else one.first for one in points)
    return ceil(1e4 * min(one.estimate for one in seconds)) / 1e4


def knob_effects(search: ServingSearch, best: ServingPoint) -> list[KnobEffect]:
    """One change of the first plan at a time, on the same GPUs."""
    found = (_effect(search.question, best, change) for change in _changes(best))
    return [one for one in found if one is not None]


def _changes(best: ServingPoint) -> Iterator[dict[str, Any]]:
    """Keys of `inference` with another value."""
    setup = best.served.setup
    options, keys = server(setup.engine).options, setup.keys
    if TENSOR in keys and EXPERTS not in keys and DATA not in keys:
        tp, pp = keys[TENSOR], keys.get(PIPELINE, 1)
        if 2 * tp <= GPUS_PER_NODE:
            yield {TENSOR: 2 * tp}
        if tp > 1:
            yield {TENSOR: tp // 2}
        if PIPELINE in options:
            yield {PIPELINE: 2 * pp}
    if CACHE in options:
        yield {CACHE: "auto" if CACHE in keys else "fp8"}
    if WEIGHTS in options and WEIGHTS not in keys:
        yield {WEIGHTS: "fp8"}
    yield {"batch_size": 2 * best.users}
    if best.batch > 1:
        yield {"batch_size": max(1, best.users // 2)}


def _effect(
    question: ServingQuestion, best: ServingPoint, change: dict[str, Any]
) -> KnobEffect | None:
    """What a change does to memory, to the seconds per output token and to tokens per second."""
    changed = changed_point(question, best, change)
    if changed is None:
        return None
    return KnobEffect(
        change={f"{SECTION}{key}": value for key, value in change.items()},
        needs_bytes=needed_bytes(changed.served.estimate) - needed_bytes(best.served.estimate),
        step_seconds=changed.output.estimate - best.output.estimate,
        fits_on_gpu=changed.batch <= changed.served.most_users(changed.lengths),
        tokens_per_second=changed.tokens_per_second - best.tokens_per_second,
    )


def changed_point(
    question: ServingQuestion, best: ServingPoint, change: dict[str, Any]
) -> ServingPoint | None:
    """The plan with some keys changed; None where it does not start on its GPUs."""
    setup, lengths = best.served.setup, best.lengths
    if "batch_size" in change:
        batch = -(-change["batch_size"] // best.replicas)
        return point(best.served, lengths, batch, best.servers)
    keys = {**setup.keys, **change}
    scale = keys.get(TENSOR, 1) * keys.get(PIPELINE, 1)
    before = setup.keys.get(TENSOR, 1) * setup.keys.get(PIPELINE, 1)
    gpus = setup.gpus * scale // before
    if best.gpus % gpus:
        return None
    shown = {key: value for key, value in keys.items() if (key, value) != (CACHE, "auto")}
    served = served_setup(question, replace(setup, keys=shown, gpus=gpus), lengths)
    if served is None:
        return None
    servers = best.gpus // gpus
    users = question.users
    batch = largest_batch(question, served, lengths)
    if users is not None:
        batch = -(-users // (servers * served.copies))
    return point(served, lengths, max(1, batch), servers)


def searched_plans(
    question: ServingQuestion,
    progress: Progress | None = None,
    changed: Callable[[SoFar], None] | None = None,
) -> Plans:
    """The best plans, and every plan on the front; the smallest changes where there is none.

    changed: called after each set-up that starts with a function that gives the plans so far
    """
    started = time.perf_counter()
    search = begun_search(question)
    try:
        evaluate_servers(
            search, progress, changed and (lambda: changed(partial(best_plans, search)))
        )
        found = best_plans(search)
        if found.plans:
            effects = knob_effects(search, chosen_points(search)[0])
            plans = [replace(found.plans[0], knobs=effects), *found.plans[1:]]
            found = replace(found, plans=plans)
        else:
            found = replace(found, if_nothing_fits=smallest_changes(search))
    except KeyboardInterrupt:
        found = replace(best_plans(search), limits=[INTERRUPTED])
        if found.plans:
            raise PlansSoFar(found) from None
        raise
    seconds = time.perf_counter() - started
    return replace(found, space=replace(found.space, seconds=seconds))


def best_plans(search: ServingSearch) -> Plans:
    """The best plans of the set-ups that were evaluated, that of each engine, and those on their
    front.
    """
    question = search.question
    ranked = chosen_points(search)
    firsts = {id(one) for one in {one.served.setup.engine: one for one in ranked[::-1]}.values()}
    shown = [one for n, one in enumerate(ranked) if n < question.top or id(one) in firsts]
    edge = [one for one in front(search.points) if meets(question, one)]
    kept = [*shown, *(one for one in edge if one not in shown)]
    return Plans(
        question=msgspec.to_builtins(question),
        space=SearchedSpace(
            set_ups=len(search.setups) - len(search.served) + len(search.points),
            feasible=sum(meets(question, one) for one in search.points),
            seconds=0.0,
            axes=searched_axes(search.setups),
        ),
        plans=full_plans(question, kept, ranked),
        front=[kept.index(one) for one in edge],
    )


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
        try:
            found = searched_plans(replace(asked, model={"name": name}))
        except KeyboardInterrupt:
            if plans:
                raise PlansSoFar(_of_models(question, plans, set_ups, [INTERRUPTED])) from None
            raise
        set_ups += found.space.set_ups
        for one in found.plans[:1]:
            settings = {"model.name": name, **one.settings}
            plans.append(replace(one, rank=len(plans) + 1, settings=settings))
        if len(plans) == question.top:
            break
    answer = _of_models(question, plans, set_ups)
    seconds = time.perf_counter() - started
    return replace(answer, space=replace(answer.space, seconds=seconds))


def _of_models(
    question: ServingQuestion, plans: list[Plan], set_ups: int, limits: Sequence[str] = ()
) -> Plans:
    return Plans(
        question=msgspec.to_builtins(question),
        space=SearchedSpace(set_ups=set_ups, feasible=len(plans), seconds=0.0),
        plans=plans,
        front=list(range(len(plans[:1]))),
        limits=list(limits),
    )


def largest_names(question: ServingQuestion, most: int) -> list[str]:
    """The largest presets whose weights the GPUs hold, the largest first, at most `most`."""
    engine = server(question.engines[0])
    keys: dict[str, Any] = {"engine": engine.name, **question_keys(engine, None, question.context)}
    data = {"model": {"name": "-"}, "inference": keys, "hardware": question.hardware}
    changes = largest_models(data, most=most)
    return [one.setting[0].partition("=")[2] for one in changes]


def plan_serving(
    question: ServingQuestion,
    progress: Progress | None = None,
    changed: Callable[[SoFar], None] | None = None,
) -> Plans:
    """The plans of a question, best first by its goal."""
    check_question(question)
    if question.goal == LARGEST_MODEL:
        return largest_models_plans(question, progress)
    return searched_plans(question, progress, changed)


def check_question(question: ServingQuestion) -> None:
    """Refuse targets that mean nothing, and cards whose rates are not known."""
    for name in ("users", "context", "new_tokens", "latency", "first_token", "throughput", "top"):
        value = getattr(question, name)
        if value is not None and value <= 0:
            raise InputError(f"{name}={value} must be more than 0")
    section = msgspec.convert(question.hardware, GPUConfig)
    if find_card_rates(section) is None:
        named = question.hardware.get("gpu")
        why = f"the rates of {named!r} are not known" if named else "no GPU is named"
        raise InputError(f"plans for serving need a card's rates, and {why}; add --gpu h100")
