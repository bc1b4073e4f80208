"""A user's function as the program that is measured."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_mem_calculator.lab.backtest.predict import by_estimate, by_trace
from gpu_mem_calculator.lab.backtest.rows import rows_from
from gpu_mem_calculator.lab.jobs.job import World
from gpu_mem_calculator.lab.measure import program as module
from gpu_mem_calculator.lab.measure import worker
from gpu_mem_calculator.lab.measure.cases_file import MeasureCase, read_cases
from gpu_mem_calculator.lab.measure.program import program
from gpu_mem_calculator.runfile.text.errors import InputError

from .conftest import FakeCuda

CODE = """
import torch

class Net(torch.nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.blocks = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(layers)))

    def forward(self, x):
        assert x.device == self.blocks[0].weight.device
        return self.blocks(x).mean()

def make(layers=2, rows=4): return Net(layers), torch.randn(rows, 8)
"""


@pytest.fixture(autouse=True)
def users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The current folder has the user's module."""
    (tmp_path / "measured_model.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    yield
    sys.modules.pop("measured_model", None)


def run_file(kind: str = "pytorch_ddp", gpus: int = 1, **training: Any) -> dict[str, Any]:
    """A run file without a model."""
    return {
        "training": {"precision": "fp32", **training},
        "engine": {"type": kind},
        "hardware": {"num_gpus": gpus},
    }


def test_the_function_s_model_is_trained() -> None:
    """Really, on the CPU: every phase of each step."""
    pytest.importorskip("torch")
    heard: list[str] = []
    found = program(run_file(), "measured_model:make", {"layers": 3})
    found.start(World(device="cpu", mark=heard.append, steps=2))
    assert heard == [
        "model",
        *(f"s{n}.{phase}" for n in (0, 1) for phase in ("a0.fwd", "a0.bwd", "opt")),
    ]
    assert (found.group, found.num_ranks) == ("single", 1)


@pytest.mark.parametrize(
    ("kind", "place"), [("pytorch_ddp", None), ("fsdp", "cpu"), ("deepspeed", None)]
)
def test_the_model_is_made_on_the_gpu(
    monkeypatch: pytest.MonkeyPatch, kind: str, place: str | None
) -> None:
    """Whole, but FSDP's, which is sharded from the host; nothing is loaded before the job."""
    seen: list[Any] = []
    jobs: list[Any] = []
    monkeypatch.setattr(module, "UserFunction", lambda *words, **rest: seen.append((words, rest)))
    monkeypatch.setattr(module, "run", jobs.append)
    found = program(run_file(kind, 8), "no_such:thing", {"layers": 3})
    assert (found.num_ranks, seen) == (8, [])
    found.start(World(device="cuda", mark=lambda name: None))
    (given,) = seen
    assert given == (("no_such:thing", "fp32", {"layers": 3}), {"device": "cuda", "made_on": place})
    assert len(jobs) == 1


def test_what_a_function_cannot_replace_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Megatron makes its own model, inference runs the file's, adapters are the function's."""
    monkeypatch.setattr(module, "UserFunction", lambda *words, **rest: words)
    world = World(device="cpu", mark=lambda name: None)
    with pytest.raises(InputError, match="--function works for deepspeed, fsdp, pytorch_ddp"):
        program(run_file("megatron_lm", 8), "measured_model:make").start(world)
    with pytest.raises(InputError, match="leave --function out"):
        program({"inference": {"batch_size": 1}}, "measured_model:make")
    with pytest.raises(InputError, match="make the adapters in the function"):
        program(run_file(lora={"r": 8}), "measured_model:make")


def test_the_row_keeps_the_function(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With its arguments, beside the run file as it was given; the row is a case again."""
    seen: list[Any] = []

    def start(job: Any) -> None:
        seen.append(job.build)
        job.world.mark("model")
        job.world.mark("s0.opt")

    monkeypatch.setattr(module, "run", start)
    monkeypatch.setattr(module, "UserFunction", lambda *words, **rest: words)
    config = run_file("deepspeed", 8)
    case = MeasureCase(id="a", config=config, function="measured_model:make", values={"layers": 3})
    row = worker.measure_case(case, lambda message: None)
    assert (row["function"], row["with"], row["config"]) == (case.function, {"layers": 3}, config)
    assert seen == [("measured_model:make", "fp32", {"layers": 3})]
    path = tmp_path / "runs.jsonl"
    path.write_text(json.dumps(row))
    (again,) = read_cases(path)
    assert (again.function, again.values) == (case.function, case.values)


@pytest.mark.parametrize("rung", [by_estimate, by_trace])
def test_a_run_file_does_not_predict_it(rung: Any) -> None:
    """The stand-in for its model would be a wrong figure."""
    row = {
        "id": "a",
        "group": "ddp",
        "config": run_file(),
        "function": "m:f",
        "with": {},
        "measured": {"allocated_bytes": 1},
    }
    with pytest.raises(InputError, match="its model is made by m:f, which backtest does not run"):
        rung(rows_from([row])[0])


def test_rows_of_run_files_have_no_function() -> None:
    """Nothing is added to what was there."""
    row = worker.row_head(MeasureCase(id="a", config={}), "ddp")
    assert set(row) == {"id", "group", "config", "rank"}
