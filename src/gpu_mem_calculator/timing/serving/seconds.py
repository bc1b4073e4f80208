"""Seconds of a server's prefill and decode step, with their interval."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from .measured import ALONE, PROMPTS, SHARES, TOGETHER, ReachedShare
from .roofline import ServingReplica, first_token_time, prompts, step_rates

UNMEASURED = ReachedShare(0.3, 0.1, 0.7, 0)  # of engines without public figures


class ServingSeconds(Struct, frozen=True, kw_only=True):
    """Seconds with their 80 % interval; `parts` add up to the estimate."""

    estimate: float
    low: float
    high: float
    parts: Mapping[str, float]


def first_token_seconds(
    replica: ServingReplica, engine: str, prompt: int, chunk: int
) -> ServingSeconds:
    """A prompt alone on a replica, up to its first token."""
    bound = first_token_time(replica.alone, prompt, chunk)
    return _seconds(bound.seconds, bound.bound, engine, PROMPTS)


def prompt_seconds(replica: ServingReplica, engine: str, prompt: int) -> ServingSeconds:
    """A prompt of many: with every stage busy."""
    bound = prompts(replica, prompt, 1)
    return _seconds(bound.seconds, bound.bound, engine, PROMPTS)


def step_seconds(
    replica: ServingReplica, engine: str, context: int, sequences: int
) -> ServingSeconds:
    """A decode step of `sequences` sequences that have `context` tokens each."""
    _, each, bound = step_rates(replica, context, sequences)
    return _seconds(1 / each, bound, engine, TOGETHER if sequences > 1 else ALONE)


def _seconds(bound: float, part: str, engine: str, kind: str) -> ServingSeconds:
    share = SHARES.get(engine, {}).get(kind) or UNMEASURED
    return ServingSeconds(
        estimate=bound / share.median,
        low=bound / share.most,
        high=bound / share.least,
        parts={part: bound / share.median},
    )
