"""What each change of a plan for serving costs or saves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from ....runfile.resolve.serving_split import DATA, GPUS_PER_NODE, PIPELINE, TENSOR
from ....serving import server
from ..answers.plans import KnobEffect
from ..answers.serving_question import ServingQuestion
from .plan import needed_bytes
from .points import ServingPoint, largest_batch, point
from .search import ServingSearch
from .set_up import served_setup
from .space import CACHE, EXPERTS, SECTION, WEIGHTS


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
