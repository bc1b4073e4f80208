"""transformers.Trainer itself on the CPU: a job marks the end of start-up and of each step."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator.lab.jobs.job import Job, World, run
from gpu_mem_calculator.lab.jobs.program import RUNNERS, TRL
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.tools.read import read
from gpu_mem_calculator.tools.translation.tools import STARTED, TOOLS
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
    file = read(
        {"model": {"config": SMALL_LLAMA}, "program": program, "hardware": {"gpu": "h100"}}
    ).file
    marks: list[str] = []
    world = World(device="cpu", mark=marks.append, steps=2)
    run(Job(file=file, resolved=resolve(file), world=world))
    assert marks == ["model", "s0.step", "s1.step"]


def test_every_program_that_can_be_started_is_run_by_its_own_module() -> None:
    """No trainer is taken for another."""
    assert set(RUNNERS) == set(STARTED), "add it to RUNNERS in lab/jobs/program.py"
    trainers = {name.partition(".")[2] for name in TOOLS if name.startswith("trl.")}
    assert set(TRL) == trainers, "add the module and the rows of it to TRL in lab/jobs/program.py"
