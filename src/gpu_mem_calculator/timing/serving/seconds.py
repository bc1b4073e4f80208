"""Seconds of a server's prefill and decode step, by part and with their interval.

Kernels follow measured curves (`kernels`); what the engine adds is from published benchmarks
(`measured`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import Struct

from .kernels import (
    ServingGpu,
    decode_attention_seconds,
    elementwise_seconds,
    exchange_seconds,
    matrix_seconds,
    prompt_attention_seconds,
    reduction_seconds,
)
from .measured import ALONE, INTERVALS, PROMPTS, TOGETHER, EngineCosts
from .parts import ALWAYS, ENCODING, LAST
from .roofline import ServingReplica
from .work import StageWork

MATRICES, ATTENTION, OTHER = "matrix products", "attention", "other kernels"
COMMUNICATION, HOST = "communication", "host"
Parts = dict[str, float]


def prompt_parts(
    stage: StageWork, prompt: int, sequences: float, chunk: int, gpu: ServingGpu
) -> Parts:
    """The prefill of `sequences` prompts, in passes of at most `chunk` tokens."""
    tokens = prompt * sequences
    passes = max(1.0, tokens / chunk)
    each = tokens / passes
    decoded = sequences if stage.encodes else each
    used = matrix_seconds(stage, ALWAYS, decoded, gpu) + matrix_seconds(stage, ENCODING, each, gpu)
    sent = reduction_seconds(stage, each, gpu) + exchange_seconds(stage, each, gpu)
    return {
        MATRICES: passes * used + matrix_seconds(stage, LAST, sequences, gpu),
        ATTENTION: prompt_attention_seconds(stage, prompt, sequences, gpu),
        OTHER: passes * elementwise_seconds(stage, each, gpu),
        COMMUNICATION: passes * sent,
    }


def step_parts(stage: StageWork, context: float, sequences: float, gpu: ServingGpu) -> Parts:
    """A decode step of `sequences` sequences with `context` tokens each."""
    used = sum(matrix_seconds(stage, use, sequences, gpu) for use in (ALWAYS, LAST))
    sent = reduction_seconds(stage, sequences, gpu) + exchange_seconds(stage, sequences, gpu)
    return {
        MATRICES: used,
        ATTENTION: decode_attention_seconds(stage, context, sequences, gpu),
        OTHER: elementwise_seconds(stage, sequences, gpu),
        COMMUNICATION: sent,
    }


class ServingSeconds(Struct, frozen=True, kw_only=True):
    """Seconds with their 80 % interval; `parts` add up to the estimate."""

    estimate: float
    low: float
    high: float
    parts: Mapping[str, float]


class TimedReplica(Struct, frozen=True, kw_only=True):
    """A replica with what its time depends on.

    - `chunk`: the most tokens of prompts in one pass
    - `share`: speed of kernels over that of the machine's curves
    """

    replica: ServingReplica
    gpu: ServingGpu
    costs: EngineCosts
    chunk: int
    share: float = 1.0


def first_token_seconds(timed: TimedReplica, prompt: int) -> ServingSeconds:
    """A prompt alone on a replica, up to its first token; chunks of it are pipelined."""
    stages = _prompt_stages(timed, timed.replica.alone, prompt, 1.0)
    chunks = -(-prompt // timed.chunk)
    slowest = max(stages, key=_sum)
    parts = {
        name: (sum(one[name] for one in stages) + (chunks - 1) * slowest[name]) / chunks
        for name in slowest
    }
    return _seconds(_with_host(timed, parts, timed.costs.request), PROMPTS)


def prompt_seconds(timed: TimedReplica, prompt: int, sequences: float = 1.0) -> ServingSeconds:
    """Prompts of many users, with every stage busy; one stage after another without overlap."""
    stages = _prompt_stages(timed, timed.replica, prompt, sequences)
    parts = max(stages, key=_sum) if timed.replica.overlapped else _summed(stages)
    return _seconds(_with_host(timed, parts, timed.costs.request * sequences), PROMPTS)


def step_seconds(timed: TimedReplica, context: float, sequences: float) -> ServingSeconds:
    """A decode step of `sequences` sequences that have `context` tokens each.

    A pipeline divides the sequences into as many batches as it has stages.
    """
    replica = timed.replica if sequences > 1 else timed.replica.alone
    batches = min(float(len(replica.stages)), sequences) if replica.overlapped else 1.0
    many = sequences / batches
    stages = _each_stage(
        replica, lambda stage: step_parts(stage, context, many, timed.gpu), timed.share
    )
    slowest, whole = max(stages, key=_sum), _summed(stages)
    waits = {name: batches * value for name, value in slowest.items()}
    parts = whole if _sum(whole) >= _sum(waits) else waits
    parts = _with_host(timed, parts, timed.costs.sequence * sequences)
    return _seconds(parts, TOGETHER if sequences > 1 else ALONE)


def _prompt_stages(
    timed: TimedReplica, replica: ServingReplica, prompt: int, sequences: float
) -> list[Parts]:
    def parts_of(stage: StageWork) -> Parts:
        return prompt_parts(stage, prompt, sequences, timed.chunk, timed.gpu)

    return _each_stage(replica, parts_of, timed.share * timed.costs.prompt_share)


def _each_stage(
    replica: ServingReplica, parts_of: Callable[[StageWork], Parts], share: float
) -> list[Parts]:
    """The parts of each stage at a share of the curves' speed; equal stages are computed once."""
    found: dict[int, Parts] = {}
    for stage in replica.stages:
        if id(stage) not in found:
            parts = parts_of(stage)
            found[id(stage)] = {name: value / share for name, value in parts.items()}
    return [found[id(stage)] for stage in replica.stages]


def _with_host(timed: TimedReplica, parts: Parts, own: float) -> Parts:
    """The parts with what the host adds; `own`: seconds of the sequences themselves."""
    layers = sum(stage.layers for stage in timed.replica.stages)
    launching = max(0.0, timed.costs.layer * layers - _sum(parts))
    return {**parts, HOST: launching + timed.costs.step + own}


def _sum(parts: Parts) -> float:
    return sum(parts.values())


def _summed(stages: list[Parts]) -> Parts:
    return {name: sum(one[name] for one in stages) for name in stages[0]}


def _seconds(parts: Parts, kind: str) -> ServingSeconds:
    total, interval = _sum(parts), INTERVALS[kind]
    return ServingSeconds(
        estimate=total, low=interval.low * total, high=interval.high * total, parts=parts
    )
