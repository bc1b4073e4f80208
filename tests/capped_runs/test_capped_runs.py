"""The cases of trials under a cap: enough of each group, and every one can be run."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from gpu_mem_calculator.estimates.calculator import full_estimate
from gpu_mem_calculator.lab.measure.program import program
from gpu_mem_calculator.ledger.units import GIB
from maintenance.capped_trials.cases import read_trial_cases
from tests.corpus import sampled

from .__main__ import HERE
from .draw import DRAWS, SEED, draw_cases
from .runs import GROUPS
from .seen import seen_runs, trial_group

FEWEST, FEWEST_OF_A_GROUP = 140, 14


def drawn(name: str) -> list[dict[str, Any]]:
    """The drawn cases of a file."""
    return [json.loads(line) for line in (HERE / name).read_text().splitlines()]


@pytest.mark.parametrize("name", DRAWS)
def test_every_group_has_enough_cases(name: str) -> None:
    """Each under its own id."""
    cases = drawn(name)
    counts = Counter(case["group"] for case in cases)
    assert len(cases) >= FEWEST
    assert len({case["id"] for case in cases}) == len(cases)
    assert set(counts) == set(GROUPS)
    assert min(counts.values()) >= FEWEST_OF_A_GROUP
    assert all(case["group"] == trial_group(case["config"]) for case in cases)


@pytest.mark.parametrize("name", sampled(list(DRAWS), keep=1))
def test_the_cases_are_the_draw_of_their_seed(name: str) -> None:
    """All but a few: a better formula may move a run over one of the limits."""
    again = {case["id"]: case for case in draw_cases(name)}
    same = [case for case in drawn(name) if again.get(case["id"]) == case]
    assert len(same) >= 0.9 * len(again)


@pytest.mark.parametrize("name", sampled(list(DRAWS), keep=1))
def test_every_case_can_be_run_and_is_neither_small_nor_large(name: str) -> None:
    """By `measure`, on a card that can hold several."""
    for case in drawn(name):
        ranks = case["config"]["hardware"]["num_gpus"]
        assert 0 <= case["rank"] < ranks
        assert program(case["config"]).num_ranks == ranks
        stages = full_estimate(case["config"], replay=False).result.stages
        allocated = stages[case["rank"] // (ranks // len(stages))].allocated_bytes
        assert 1.5 * GIB < allocated < 65 * GIB, case["id"]


def test_measured_runs_are_found_by_file_and_id() -> None:
    """They are in all groups, and the selection is the seed's."""
    cases = read_trial_cases(HERE / "seen.jsonl")
    assert {case.group for case in cases} == set(GROUPS)
    assert len(cases) == len(seen_runs(SEED))


@pytest.mark.parametrize("group", GROUPS)
def test_a_group_has_several_families_and_lengths(group: str) -> None:
    """Not one model in many batches."""
    configs = [case["config"] for case in drawn("cases.jsonl") if case["group"] == group]
    assert len({config["model"]["config"]["model_type"] for config in configs}) >= 4
    assert len({json.dumps(config["model"], sort_keys=True) for config in configs}) >= 10
