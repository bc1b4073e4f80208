"""Remedies of a server that does not fit: small sets of changes whose commands work when pasted."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from gpu_mem_calculator.advice.serving.answers import answers
from gpu_mem_calculator.cli.parser import OPTIONS
from gpu_mem_calculator.estimates.calculator import full_estimate
from gpu_mem_calculator.estimates.serving.infer_command import FLAGS, infer_command
from gpu_mem_calculator.report.lines import plain
from gpu_mem_calculator.report.serving.answer import MOST_LINES, short_answer
from tests.corpus import sampled

from .conftest import Command

SHORT: list[tuple[str, str, str, dict[str, Any]]] = [
    ("deepseek-v3", "vllm", "h200-141gb-sxm", {}),
    ("llama3.3-70b", "vllm", "h100-80gb-sxm", {}),
    ("llama3.3-70b", "sglang", "h100-80gb-sxm", {}),
    ("llama3.3-70b", "tensorrt_llm", "h100-80gb-sxm", {}),
    ("llama3.1-405b", "tgi", "rtx-4090", {}),
    ("llama3.1-8b", "llamacpp", "rtx-3060-12gb", {"fit": False}),
    ("llama3.1-8b", "transformers", "rtx-3060-12gb", {}),
    ("llama4-scout-instruct", "sglang", "rtx-3050-8gb", {}),
    ("glm-4.5-air", "transformers", "apple-m5-max-48gb", {}),
    ("llama3.1-8b", "vllm", "h100-80gb-sxm", {"batch_size": 500, "max_seq_len": 16384}),
    ("llama3.1-8b", "vllm", "h100-80gb-sxm", {"batch_size": 5000, "max_seq_len": 256}),
]


@pytest.mark.parametrize(("model", "engine", "card", "keys"), sampled(SHORT, keep=6))
def test_every_remedy_fits_when_it_is_pasted(
    command: Command, model: str, engine: str, card: str, keys: dict[str, Any]
) -> None:
    """There is one, the smallest first; its command gives the users that it promises."""
    run = {
        "model": {"name": model},
        "inference": {"engine": engine, **keys},
        "hardware": {"gpu": card},
    }
    estimate = full_estimate(run)
    assert not estimate.result.fits_on_gpu
    found = answers(estimate)
    assert found.remedies
    sizes = [len(one.changes) for one in found.remedies]
    assert sizes == sorted(sizes)
    for one in found.remedies:
        data = command(*shlex.split(one.command)[1:], "--format", "json").data
        assert data["fits_on_gpu"], one.command
        if data["serving"] is not None:
            assert data["serving"]["users"] == one.users > 0
    lines = plain(short_answer(estimate, found, infer_command(run))).splitlines()
    assert len(lines) <= MOST_LINES
    assert max(map(len, lines)) <= 80


def test_the_flags_of_commands_are_those_of_infer() -> None:
    """Each key has the same option in the command that is printed and in the one that is read."""
    rows = [row for row in OPTIONS["infer"] if "dest" in row]
    options = {row["dest"]: row["names"].split() for row in rows}
    assert all(flag in options[key] for key, flag in FLAGS.items() if key in options)
