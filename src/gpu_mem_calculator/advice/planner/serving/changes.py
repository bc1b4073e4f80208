"""The smallest changes with which a question about serving has an answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from math import ceil, floor
from typing import Any

from msgspec.structs import replace

from ....estimates.calculator import Estimate, full_estimate
from ....runfile.read import with_settings
from ....runfile.text.errors import InputError
from ...serving.changes import Server
from ...serving.server_remedies import remedies
from ..answers.plans import SmallestChange
from .plan import needed_bytes
from .points import MOST_GPUS, ServingPoint, fast_enough, fewest_servers, meets, point, points_on
from .search import ServingSearch
from .set_up import ServedSetup, server_run

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
        points = [
            one
            for served in search.served
            for one in points_on(asked, served, search.lengths, search.gpus)
            if meets(asked, one)
        ]
        if points:
            yield SmallestChange(change={name: reached(name, points)}, saves_bytes=0)


def all_targets_weaker(search: ServingSearch) -> Iterator[SmallestChange]:
    """What the plan with the most tokens per second meets of all targets."""
    given = [name for name in TARGETS if getattr(search.question, name) is not None]
    asked = replace(search.question, **dict.fromkeys(given))
    points = [
        one
        for served in search.served
        for one in points_on(asked, served, search.lengths, search.gpus)
    ]
    if points:
        best = max(points, key=lambda one: one.tokens_per_second)
        met = {name: reached(name, [best]) for name in given}
        yield SmallestChange(change=met, saves_bytes=0)


def reached(name: str, points: list[ServingPoint]) -> float:
    """The best value of a target over some points, rounded to what they still meet."""
    if name == "users":
        return max(one.users for one in points)
    if name == "throughput":
        return floor(max(one.tokens_per_second for one in points))
    seconds = (one.output if name == "latency" else one.first for one in points)
    return ceil(1e4 * min(one.estimate for one in seconds)) / 1e4
