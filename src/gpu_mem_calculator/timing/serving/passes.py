"""Seconds of a prefill pass and of a decode step on one pipeline stage, by part."""

from __future__ import annotations

from ..curves.machine import Machine
from .card import CardRates
from .kernels import (
    decode_attention_seconds,
    elementwise_seconds,
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
    stage: StageWork, prompt: int, sequences: float, chunk: int, machine: Machine, card: CardRates
) -> Parts:
    """The prefill of `sequences` prompts, in passes of at most `chunk` tokens."""
    tokens = prompt * sequences
    passes = max(1.0, tokens / chunk)
    each = tokens / passes
    decoded = sequences if stage.encodes else each
    return {
        MATRICES: passes
        * (
            matrix_seconds(stage, ALWAYS, decoded, machine, card)
            + matrix_seconds(stage, ENCODING, each, machine, card)
        )
        + matrix_seconds(stage, LAST, sequences, machine, card),
        ATTENTION: prompt_attention_seconds(stage, prompt, sequences, machine, card),
        OTHER: passes * elementwise_seconds(stage, each, card),
        COMMUNICATION: passes * reduction_seconds(stage, each, machine),
    }


def step_parts(
    stage: StageWork,
    context: float,
    sequences: float,
    capability: str,
    machine: Machine,
    card: CardRates,
) -> Parts:
    """A decode step of `sequences` sequences with `context` tokens each."""
    return {
        MATRICES: matrix_seconds(stage, ALWAYS, sequences, machine, card)
        + matrix_seconds(stage, LAST, sequences, machine, card),
        ATTENTION: decode_attention_seconds(stage, context, sequences, capability, card),
        OTHER: elementwise_seconds(stage, sequences, card),
        COMMUNICATION: reduction_seconds(stage, sequences, machine),
    }
