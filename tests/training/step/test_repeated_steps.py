"""The last step of a stream is copied from the one before it: the stream is that of writing it."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator.estimates.stage_replay import stage_requests
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.read import read
from gpu_mem_calculator.training.engines import engine_names
from gpu_mem_calculator.training.step import stream as written
from gpu_mem_calculator.training.step.stream import repeat_step
from tests.golden.stored_runs import HERE, run_file, stored_settings

FILES = [path for name in engine_names() if (path := HERE / "training" / f"{name}.txt").exists()]
SETTINGS = [one for path in FILES for one in stored_settings(path) if "model.case" in one]
OTHER = ("zero_grad=before_backward", "zero_grad=before_forward gradient_accumulation_steps=3")
START = "model.name=gpt2 num_gpus=4"
FEW = [*SETTINGS[::40], *(f"type={e} {START} {o}" for e in engine_names() for o in OTHER)]
REST = [pytest.param(one, marks=pytest.mark.proof) for one in SETTINGS if one not in FEW]


@pytest.mark.parametrize("settings", [*FEW, *REST])
def test_a_copied_step_is_the_written_one(settings: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the engine and its options, also on a small GPU."""
    try:
        asked = stage_requests(resolve(read(run_file(settings)).file), 0)
    except InputError:
        return
    copied = (asked.usual, None if asked.ledger.tight is None else asked.tight)
    monkeypatch.setattr(written, "repeated_phases", lambda phases, steps: 0)
    again = type(asked)(asked.ledger, asked.micro_batches)
    assert copied == (again.usual, None if again.ledger.tight is None else again.tight)


def test_most_steps_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the test above would compare nothing."""
    copied: list[bool] = []

    def note(*given: Any) -> bool:
        copied.append(repeat_step(*given))
        return copied[-1]

    monkeypatch.setattr(written, "repeat_step", note)
    monkeypatch.setattr(written, "_written_before", lambda like, tight: [])
    for engine in ("fsdp", "deepspeed", "megatron_lm"):
        settings = f"type={engine} model.name=gpt2 num_gpus=56"  # of no other test: it is kept
        _ = stage_requests(resolve(read(run_file(settings)).file), 0).usual
    assert copied == [True] * 3
