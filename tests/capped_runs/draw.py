"""Draws the cases of trials under a cap; the calculator and `measure` accept every one."""

from __future__ import annotations

from random import Random
from typing import Any

from gpu_mem_calculator.estimates.calculator import STEP, Estimate, full_estimate
from gpu_mem_calculator.lab.jobs.megatron_config import refusals as megatron_refusals
from gpu_mem_calculator.lab.measure.program import program
from gpu_mem_calculator.ledger.units import GIB
from gpu_mem_calculator.runfile.text.errors import InputError

from .models import model_name
from .runs import GROUPS, RunDict

SEED = 2026
DRAWS = {"cases.jsonl": ("capped", SEED), "second.jsonl": ("second", SEED + 1)}
"""File -> what its ids begin with, and its seed; each was drawn before any of its cases was run."""
LEAST, MOST = 2 * GIB, 60 * GIB  # allocated, by the ledger
USUAL = 24 * GIB  # larger ones are drawn less often, because few of them fit on a card at once
LARGE_SHARE = 0.3
MOST_HOST = 16 * GIB
MOST_WORK = {"fp32": 1e14}  # floating-point operations of a run: about two seconds on an H200
USUAL_WORK = 6e14
Case = dict[str, Any]


def draw_cases(file: str) -> list[Case]:
    """All cases of a file, group by group."""
    return [
        draw_case(*DRAWS[file], group, number)
        for group, (count, _) in GROUPS.items()
        for number in range(count)
    ]


def draw_case(prefix: str, seed: int, group: str, number: int) -> Case:
    """Case `number` of a group; what is refused, or is out of the limits, is drawn again."""
    rng = Random(f"{seed}/{group}/{number}")
    _, draw = GROUPS[group]
    while True:
        run = draw(rng, number)
        rank = _rank(rng, run)
        if is_suitable(rng, run, rank):
            name = model_name(run["model"]["config"])
            return {
                "id": f"{prefix}-{group}-{number:02}-{name}",
                "group": group,
                "config": run,
                "rank": rank,
            }


def _rank(rng: Random, run: RunDict) -> int:
    """The first rank of a pipeline stage."""
    stages = run.get("parallelism", {}).get("pipeline_parallel_size", 1)
    return rng.randrange(stages) * (run["hardware"]["num_gpus"] // stages)


def is_suitable(rng: Random, run: RunDict, rank: int) -> bool:
    """Whether a run can be measured, is within the limits, and is one of the large ones to keep."""
    try:
        estimate = full_estimate(run, replay=False)
        program(run)
        _check_job(estimate)
    except InputError:
        return False
    stage = rank // (run["hardware"]["num_gpus"] // len(estimate.ledgers))
    allocated = int(estimate.ledgers[stage].peak(phases=STEP))
    start = int(estimate.ledgers[stage].peak())
    if allocated < LEAST or max(allocated, start) > MOST:
        return False
    if allocated > USUAL and rng.random() > LARGE_SHARE:
        return False
    if estimate.result.host_bytes_per_node / estimate.resolved.hardware.gpus_per_node > MOST_HOST:
        return False
    return work(estimate, run) <= MOST_WORK.get(_precision(run), USUAL_WORK)


def _check_job(estimate: Estimate) -> None:
    """Raise what the program of an engine refuses although it is estimated."""
    resolved = estimate.resolved
    if resolved.engine.name == "megatron_lm" and (
        problems := list(megatron_refusals(resolved.run))
    ):
        raise InputError(problems)


def _precision(run: RunDict) -> str:
    return str(run["training"]["precision"] if "training" in run else run["inference"]["dtype"])


def work(estimate: Estimate, run: RunDict) -> float:
    """Floating-point operations of a whole measurement, roughly: 2 for each parameter and token of
    a forward pass, three times that for training, and three steps.
    """
    parameters = estimate.result.num_parameters
    if "inference" in run:
        options = run["inference"]
        return 2.0 * parameters * options["batch_size"] * (options["prompt_len"] + 8)
    chosen, mesh = run["training"], estimate.resolved.run.mesh
    tokens = chosen["batch_size"] * chosen["seq_len"] * chosen["gradient_accumulation_steps"]
    return 18.0 * parameters * tokens / (int(mesh.tp) * int(mesh.pp))
