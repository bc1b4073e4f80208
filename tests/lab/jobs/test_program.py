"""transformers.Trainer itself on the CPU: a job marks the end of start-up and of each step."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator.lab.jobs.job import Job, World, run
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.tools.read import read
from tests.conftest import SMALL_LLAMA

PEFT = {"r": 4, "target_modules": ["q_proj"], "task_type": "CAUSAL_LM"}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("more", [{}, {"peft": PEFT}])
def test_the_trainer_runs(more: dict[str, Any]) -> None:
    """Two steps of a small model, with and without adapters."""
    pytest.importorskip("transformers")
    args = {"per_device_train_batch_size": 2, "gradient_checkpointing": bool(more)}
    program = {
        "tool": "transformers.Trainer",
        "args": args,
        "load": {"dtype": "float32"},
        "data": {"seq_len": 32},
        **more,
    }
    file = read({"model": {"config": SMALL_LLAMA}, "program": program, "hardware": {"gpu": "h100"}})
    marks: list[str] = []
    world = World(device="cpu", mark=marks.append, steps=2)
    run(Job(file=file, resolved=resolve(file), world=world))
    assert marks == ["model", "s0.step", "s1.step"]
