"""Figures of many training runs: drawn models, engines and options, each with what it takes.

`python -m tests.golden.test_training` writes the figures of the stored runs anew, `--draw` draws
other runs first: after an option or a family was added.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from gpu_mem_calculator.estimates.calculator import Estimate, full_estimate
from gpu_mem_calculator.training.engines import engine, engine_names
from tests.corpus import sampled
from tests.golden.stored_runs import HERE, check, digest, stored_settings, write

PARTS = 5  # tests for each engine, so that a changed formula fails one early
NUMBERS = {"deepspeed": 240, "megatron_deepspeed": 110}  # runs that are drawn
NUMBER = 160
REPLAYED = "0123"  # first letters of the digests of runs with a replay: a quarter of the small ones
TITLE = (
    "allocated startup outside host disk, all and trained parameters; reserved and needs where it "
    "was replayed; digests of the entries and of the heights of all instants"
)


def file_of(name: str) -> Path:
    """The file of an engine's runs."""
    return HERE / "training" / f"{name}.txt"


def figures(run: dict[str, Any]) -> str:
    """The figures of a run: numbers to read, digests of the rest."""
    small = "config" in run["model"]
    found = full_estimate(run, replay=small and digest(run)[0] in REPLAYED)
    result = found.result
    numbers = (
        result.allocated_bytes,
        result.startup_bytes,
        result.outside_torch_bytes,
        result.host_bytes_per_node,
        result.disk_bytes_per_node,
        result.num_parameters,
        result.trainable_parameters,
        result.reserved_bytes or "-",
        result.needs_bytes or "-",
    )
    return " ".join(map(str, (*numbers, digest(_entries(found)), digest(_heights(found)))))


def _entries(found: Estimate) -> list[Any]:
    return [
        (one.name, one.kind, int(one.bytes), one.place, [(k, int(n)) for k, n in one.live.items()])
        for ledger in found.ledgers
        for one in ledger.entries
    ]


def _heights(found: Estimate) -> list[Any]:
    return [
        (one.name, one.phase, int(ledger.at(one)))
        for ledger in found.ledgers
        for one in ledger.instants
    ]


@pytest.mark.parametrize("part", sampled(range(PARTS), keep=3))
@pytest.mark.parametrize("name", engine_names())
def test_figures_of_an_engine_are_as_they_were(name: str, part: int) -> None:
    """A formula that changes shows in the figures of the runs that use it."""
    check(file_of(name), part, PARTS, figures)


@pytest.mark.parametrize("name", engine_names())
def test_every_option_of_an_engine_is_drawn(name: str) -> None:
    """An option without a run here is one whose memory no stored figure shows."""
    runs = "\n".join(stored_settings(file_of(name)))
    missing = [key for key in engine(name).options if f" {key}=" not in runs]
    assert not missing, "python -m tests.golden.test_training --draw draws runs with them"


def main(draw: bool) -> None:
    """Write the files of all engines."""
    from tests.golden.drawn_training import drawn

    for name in engine_names():
        path = file_of(name)
        runs = drawn(name, NUMBERS.get(name, NUMBER)) if draw else stored_settings(path)
        write(path, TITLE, runs, figures)


if __name__ == "__main__":
    main("--draw" in sys.argv[1:])
