"""Which of Megatron's two defaults a run file or a measured row means."""

from __future__ import annotations

import pytest

from gpu_mem_calculator.lab.jobs.megatron_defaults import (
    with_measured_defaults,
    with_script_defaults,
)
from tests.conftest import small_run

KEYS = ("make_vocab_size_divisible_by", "deallocate_pipeline_outputs")


@pytest.mark.parametrize("name", ["mcore", "megatron_core", "megatron-core"])
def test_a_row_of_megatron_core_has_the_librarys_defaults(name: str) -> None:
    """A row whose environment names megatron-core was measured without Megatron-LM's script."""
    engine = with_measured_defaults(small_run("megatron_lm"), {name: "0.19.2"})["engine"]
    assert [engine[key] for key in KEYS] == [1, False]


def test_what_a_row_says_wins() -> None:
    """A key that the row states is what was measured."""
    config = small_run("megatron_lm", engine={"make_vocab_size_divisible_by": 128})
    engine = with_measured_defaults(config, {"mcore": "0.19.2"})["engine"]
    assert [engine[key] for key in KEYS] == [128, False]


def test_a_job_of_this_program_has_the_scripts_defaults() -> None:
    """The row of a job states what a run file without the keys means."""
    engine = with_script_defaults(small_run("megatron_lm"))["engine"]
    assert [engine[key] for key in KEYS] == [128, True]


@pytest.mark.parametrize(("kind", "around"), [("fsdp", {"mcore": "1"}), ("megatron_lm", {})])
def test_other_rows_stay_as_they_are(kind: str, around: dict[str, str]) -> None:
    """Another engine, or Megatron-LM itself: the run file is not touched."""
    config = small_run(kind)
    assert with_measured_defaults(config, around) == config
