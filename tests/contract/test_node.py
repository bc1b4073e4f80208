"""No door calls a run `fits` whose host RAM is above what a node has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpu_mem_calculator import estimate, plan
from gpu_mem_calculator.advice.training.remedies import remedies
from gpu_mem_calculator.cli.main import main
from gpu_mem_calculator.estimates.calculator import full_estimate, verdict
from gpu_mem_calculator.estimates.fit_verdict import EXIT_CODES, FITS, SHORT
from gpu_mem_calculator.ledger.units import GIB
from gpu_mem_calculator.runfile.read import with_settings

RUN: dict[str, Any] = {
    "model": {"name": "qwen2.5-0.5b"},
    "training": {"seq_len": 256, "batch_size": 1},
    "engine": {"type": "deepspeed", "zero_stage": 2, "offload_optimizer": "cpu"},
}
OPTIONS = ("--gpu", "h100-80gb-sxm", "--gpus", "2", "--seq-len", "256", "--batch-size", "1")
WORDS = ("--engine", "zero2", "--offload", "cpu")


def _run(has: int) -> dict[str, Any]:
    return {**RUN, "hardware": {"gpu": "h100-80gb-sxm", "num_gpus": 2, "node_memory_gb": has}}


@pytest.mark.parametrize(("has", "word"), [(4, SHORT), (200, FITS)])
def test_every_door_goes_by_what_a_node_has(
    has: int, word: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Python, quick, calculate and check."""
    path = tmp_path / "run.json"
    path.write_text(json.dumps(_run(has)))
    assert estimate(_run(has)).verdict == verdict(_run(has)) == word
    assert estimate(_run(has), replay=False).verdict in (word, "cannot_tell")
    ram = ("--node-ram", str(has))
    for words in (
        ("quick", "qwen2.5-0.5b", *OPTIONS, *WORDS, *ram, "--check"),
        ("calculate", "--config", str(path), "--check"),
        ("check", "--gpu", "h100-80gb-sxm", *ram, str(path)),
    ):
        assert main(words) == EXIT_CODES[word], words
        assert "host RAM" in capsys.readouterr().out or word == FITS


@pytest.mark.proof
@pytest.mark.parametrize("has", [4, 12, 32])
def test_no_plan_takes_more_than_a_node_has(has: int) -> None:
    """Whatever it offloads."""
    found = plan(
        "qwen2.5-0.5b", gpus=2, gpu="rtx-4090", seq_len=256, fix={"hardware.node_memory_gb": has}
    )
    assert all(one.host_bytes_per_node <= has * GIB for one in found.plans)


def test_no_remedy_takes_more_than_a_node_has() -> None:
    """Where host RAM is what is short, changes of the GPU's memory are none."""
    found = full_estimate(_run(4))
    assert found.result.verdict == SHORT
    for one in remedies(found):
        changed = full_estimate(with_settings(found.result.run, one.settings)).result
        assert changed.verdict == FITS, one
