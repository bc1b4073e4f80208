"""Every engine that exists keeps the same contract."""

from __future__ import annotations

import pytest

from gpu_mem_calculator.estimates.calculator import estimate, full_estimate
from gpu_mem_calculator.runfile.config import EngineConfig
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.training.engines import (
    DEFAULT,
    aliases,
    engine,
    engine_names,
    engine_row,
    spellings,
)
from tests.conftest import ROOT, small_run
from tests.contract.measured import values

NAMES = engine_names()


def test_the_five_engines_and_their_spellings_are_there() -> None:
    """The names of the run file's contract."""
    assert set(NAMES) == {"pytorch_ddp", "deepspeed", "fsdp", "megatron_lm", "megatron_deepspeed"}
    assert {"pytorch", "ddp", "megatron", "megatron-lm"} <= set(aliases())


@pytest.mark.parametrize("name", NAMES)
def test_an_engines_options_are_keys_of_the_run_file(name: str) -> None:
    """Whatever an engine takes can be written in a run file."""
    assert set(engine(name).options) <= set(EngineConfig.__struct_fields__)
    assert engine(name).name == name


@pytest.mark.parametrize("name", NAMES)
def test_an_option_of_another_engine_is_refused(name: str) -> None:
    """Nothing is accepted and ignored."""
    foreign = {
        "zero_stage": 1,
        "sharding_strategy": "full_shard",
        "gradient_as_bucket_view": True,
        "distributed_optimizer": True,
    }
    for key, value in foreign.items():
        if key not in engine(name).options:
            with pytest.raises(InputError, match=f"engine.{key}=.* is not an option of"):
                estimate(small_run(name, engine={key: value}))


@pytest.mark.parametrize("spelling", sorted(spellings()))
def test_every_spelling_runs(spelling: str) -> None:
    """Each name and alias gives an estimate with a source for each byte."""
    found = full_estimate(small_run(spelling))
    assert found.result.allocated_bytes > 0
    assert found.resolved.engine.name == spellings()[spelling]


@pytest.mark.parametrize("name", NAMES)
def test_an_engine_was_measured(name: str) -> None:
    """In a run of this repository, and it has a job, or a reason why none runs it."""
    row = engine_row(name)
    assert name in {spellings().get(one, one) for one in values("engine", "type", DEFAULT)}, (
        f"no measured run of tests/ground_truth or tests/new_runs has engine.type={name!r}"
    )
    assert bool(row.job) != bool(row.no_job), f"training/engines/{name}/row.py: job, or why none"


@pytest.mark.parametrize("name", NAMES)
def test_an_engine_is_documented(name: str) -> None:
    """In the guide to engines, by its title."""
    text = (ROOT / "docs" / "engines.md").read_text(encoding="utf-8")
    assert f"`{name}`" in text, f"docs/engines.md does not speak of {name!r}"
