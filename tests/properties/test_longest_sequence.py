"""The longest sequence that fits: one answer, whichever length the run itself has."""

from __future__ import annotations

import random
from typing import Any

import pytest

from gpu_mem_calculator.estimates.calculator import full_estimate, verdict
from gpu_mem_calculator.estimates.fit_verdict import FITS
from gpu_mem_calculator.estimates.longest_sequence import length_at, longest_sequence, place_of
from gpu_mem_calculator.runfile.read import with_settings

MODELS = ("llama3.1-8b", "qwen2.5-7b", "qwen2.5-0.5b", "mistral-7b-v0.1", "gemma2-2b", "gpt2-xl")
CARDS = ("rtx-4090", "a100-80gb-sxm", "h100-80gb-sxm", "l4", "rtx-3090")
METHODS: tuple[dict[str, Any], ...] = (
    {"lora": {"r": 16}, "quantization": "nf4", "activation_checkpointing": "full"},
    {"lora": {"r": 16}, "activation_checkpointing": "full"},
    {"lora": {"r": 8}},
    {"optimizer": "sgd", "activation_checkpointing": "full"},
    {},
)
ENGINES: tuple[dict[str, Any], ...] = (
    {"type": "pytorch_ddp"},
    {"type": "fsdp"},
    {"type": "deepspeed", "zero_stage": 3},
)
RUNS, SAMPLE = 120, 12
SHORT, LONG = 128, 32768


def drawn_run(number: int) -> dict[str, Any]:
    """The same run every time."""
    draw = random.Random(number)
    method = draw.choice(METHODS)
    engine = draw.choice(ENGINES[:1] if "quantization" in method else ENGINES)
    gpus = draw.choice((1, 8)) if engine["type"] == "pytorch_ddp" else 8
    return {
        "model": {"name": draw.choice(MODELS)},
        "training": {"batch_size": draw.choice((1, 1, 4)), **method},
        "engine": engine,
        "hardware": {"gpu": draw.choice(CARDS), "num_gpus": gpus},
    }


def with_length(run: dict[str, Any], tokens: int) -> dict[str, Any]:
    """A run with a length."""
    found: dict[str, Any] = with_settings(run, [f"training.seq_len={tokens}"])
    return found


def check(run: dict[str, Any]) -> None:
    """Two lengths, one answer: it fits, and what is at the next place does not."""
    draw = random.Random(repr(run))
    made = full_estimate(with_length(run, SHORT))
    longest = longest_sequence(made)
    most = min(made.resolved.longest_seq or LONG, LONG)
    asked = [draw.randrange(SHORT, most), draw.randrange(SHORT, most), min(longest or most, most)]
    asked += [] if longest is None else [min(length_at(place_of(longest) + 1), most)]
    assert {longest_sequence(full_estimate(with_length(run, one))) for one in asked} == {longest}
    if longest is None:
        assert verdict(with_length(run, SHORT)) != FITS
        return
    assert verdict(with_length(run, longest)) == FITS
    beyond = length_at(place_of(longest) + 1)
    assert beyond > most or verdict(with_length(run, beyond)) != FITS


@pytest.mark.parametrize("gpus", [1, 8])
def test_what_is_typed_does_not_change_the_answer(gpus: int) -> None:
    """A QLoRA run whose fragments differ from length to length."""
    method = METHODS[0] | {"batch_size": 1, "optimizer": "paged_adamw_8bit"}
    hardware = {"gpu": "rtx-4090", "num_gpus": gpus}
    check({"model": {"name": "llama3.1-8b"}, "training": method, "hardware": hardware})


@pytest.mark.parametrize("number", range(SAMPLE))
def test_the_longest_sequence_is_one_and_fits(number: int) -> None:
    """A sample of the runs."""
    check(drawn_run(number))


@pytest.mark.proof
@pytest.mark.parametrize("number", range(SAMPLE, RUNS))
def test_every_longest_sequence_is_one_and_fits(number: int) -> None:
    """All of them."""
    check(drawn_run(number))
