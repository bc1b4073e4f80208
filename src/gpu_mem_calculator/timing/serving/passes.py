"""Seconds of a prefill pass and of a decode step on one pipeline stage, by part."""

from __future__ import annotations

from .kernels import (
    ServingGpu,
    decode_attention_seconds,
    elementwise_seconds,
    exchange_seconds,
    matrix_seconds,
    prompt_attention_seconds,
    reduction_seconds,
)
from .parts import ALWAYS, ENCODING, LAST
from .work import StageWork

MATRICES, ATTENTION, OTHER, COMMUNICATION, HOST = (
    "matrix products",
    "attention",
    "other kernels",
    "communication",
    "host",
)
Parts = dict[str, float]


def prompt_parts(
    stage: StageWork, prompt: int, sequences: float, chunk: int, gpu: ServingGpu
) -> Parts:
    """The prefill of `sequences` prompts, in passes of at most `chunk` tokens."""
    tokens = prompt * sequences
    passes = max(1.0, tokens / chunk)
    each = tokens / passes
    decoded = sequences if stage.encodes else each
    return {
        MATRICES: passes
        * (matrix_seconds(stage, ALWAYS, decoded, gpu) + matrix_seconds(stage, ENCODING, each, gpu))
        + matrix_seconds(stage, LAST, sequences, gpu),
        ATTENTION: prompt_attention_seconds(stage, prompt, sequences, gpu),
        OTHER: passes * elementwise_seconds(stage, each, gpu),
        COMMUNICATION: passes
        * (reduction_seconds(stage, each, gpu) + exchange_seconds(stage, each, gpu)),
    }


def step_parts(stage: StageWork, context: float, sequences: float, gpu: ServingGpu) -> Parts:
    """A decode step of `sequences` sequences with `context` tokens each."""
    return {
        MATRICES: matrix_seconds(stage, ALWAYS, sequences, gpu)
        + matrix_seconds(stage, LAST, sequences, gpu),
        ATTENTION: decode_attention_seconds(stage, context, sequences, gpu),
        OTHER: elementwise_seconds(stage, sequences, gpu),
        COMMUNICATION: reduction_seconds(stage, sequences, gpu)
        + exchange_seconds(stage, sequences, gpu),
    }
