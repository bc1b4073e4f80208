"""The phases of a job by its run file, against those that measured runs marked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpu_mem_calculator.lab.backtest import phases as compared
from gpu_mem_calculator.lab.jobs import phases as module
from gpu_mem_calculator.lab.jobs.phases import inference_phases, phase_after
from gpu_mem_calculator.lab.measure.program import program
from tests.conftest import ROOT

FILES = ("options", "kept")  # written by `measure`


def measured_rows() -> list[dict[str, Any]]:
    """Of each engine and number of micro-batches, the first measured run."""
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for name in FILES:
        text = Path(ROOT, "tests", "ground_truth", f"{name}.jsonl").read_text()
        for row in map(json.loads, text.splitlines()):
            found.setdefault((row["config"]["engine"]["type"], len(row["phases"])), row)
    return list(found.values())


@pytest.mark.parametrize("row", measured_rows(), ids=lambda row: row["id"])
def test_phases_are_those_that_the_job_marks(row: dict[str, Any]) -> None:
    """Every name, in order."""
    assert program(row["config"]).phases(3) == tuple(row["phases"])


def test_inference_has_two_phases() -> None:
    """The model is loaded, then the prompt runs, alone or with what follows."""
    assert inference_phases(0) == ("load", "prefill")
    assert inference_phases(8) == ("load", "generate")


def test_the_phase_at_work_follows_the_last_that_ended() -> None:
    """The first one before any ended; nothing where it is not known."""
    phases = ("model", "s0.a0.fwd", "s0.a0.bwd", "s0.opt")
    assert phase_after([], phases) == "model"
    assert phase_after(["model", "s0.a0.fwd"], phases) == "s0.a0.bwd"
    assert phase_after([*phases], phases) == ""
    assert phase_after(["else"], phases) == ""
    assert phase_after([], ()) == ""


def test_every_kind_of_phase_is_compared_and_titled() -> None:
    """A new one has no peak and no title until it has its rows."""
    jobs = [one for one in vars(module).values() if isinstance(one, module.JobPhases)]
    kinds = {kind for one in jobs for kind in (*one.micro_batch, *one.step)}
    add = "add a row to KINDS and to WORDS in lab/backtest/phases.py"
    assert kinds | {"fwdbwd"} == set(compared.KINDS) == set(compared.WORDS), add
    assert all(module.parse(f"s0.{kind}") for kind in kinds), "add it to NAME in lab/jobs/phases.py"


def test_every_phase_of_a_trace_has_its_place_in_the_ledger() -> None:
    """Also those of start-up and of inference."""
    pytest.importorskip("torch")
    from gpu_mem_calculator.lab.trace.ledger import PHASES

    jobs = (module.TORCH, module.EVALUATED, module.DEEPSPEED)
    names = {name for one in jobs for name in (*one.startup, *one.micro_batch, *one.step)}
    add = "add a row to [ledger.phases] in lab/trace/tables.toml"
    assert names | {*module.INFERENCE} == set(PHASES), add
