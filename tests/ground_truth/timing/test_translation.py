"""Rows of public step times become run files, or are refused with a reason."""

from __future__ import annotations

from collections import Counter

import pytest
from msgspec.structs import replace

from gpu_mem_calculator.timing.training.flops import mfu, model_flops

from .baseline import peak_flops
from .rows import TimingRow, every_row
from .sections import UnusableError
from .source_flops import megatron_flops
from .translate import TimedRun, every_run, resolved, translated

USED = {
    "vTrain": 1440,
    "BigScience": 126,
    "llm-foundry": 76,
    "NVIDIA dgxc": 97,
    "InternEvo": 48,
    "Megatron SC21": 10,
    "Korthikanti": 8,
    "MegaScale": 8,
    "stas00": 6,
    "Llama 3": 2,
}


def run_of(row_id: str) -> TimedRun:
    """The run of one row."""
    return translated(row_of(row_id))


def row_of(row_id: str) -> TimingRow:
    """One row."""
    return next(row for row in every_row() if row.id == row_id)


def test_every_row_is_used_or_refused_with_a_reason() -> None:
    """None is lost, and none is counted twice."""
    used, refused = every_run()
    assert Counter(run.source for run in used) == USED
    assert len(used) + len(refused) == len(every_row()) == 2390
    assert all(one.why for one in refused)


def test_a_mesh_that_does_not_multiply_out_is_refused() -> None:
    """The number of GPUs is the product of the axes."""
    row = row_of("vtrain/1")
    with pytest.raises(UnusableError, match="multiply out"):
        translated(replace(row, n_gpus=3))
    with pytest.raises(UnusableError, match="multiply out"):
        translated(replace(row, dp=4))


def test_a_batch_that_does_not_divide_is_refused() -> None:
    """Micro-batches are whole."""
    with pytest.raises(UnusableError, match="multiple of micro-batch"):
        translated(replace(row_of("vtrain/1"), mbs=5))


def test_what_a_source_does_not_say_is_not_guessed() -> None:
    """One sentence names what is missing."""
    row = row_of("korthikanti-et-al-2022/1")
    with pytest.raises(UnusableError, match="how large a micro-batch is"):
        translated(replace(row, mbs=None))
    with pytest.raises(UnusableError, match="how many heads"):
        translated(replace(row, heads=None))


def test_eight_bits_and_unsure_rows_are_refused() -> None:
    """They are not modelled, or not known well enough."""
    row = row_of("vtrain/1")
    with pytest.raises(UnusableError, match="8 bits"):
        translated(replace(row, precision="FP8"))
    with pytest.raises(UnusableError, match="unsure"):
        translated(replace(row, quality="low: no"))


def test_the_micro_batches_of_a_step_follow_from_its_batch() -> None:
    """vTrain's first row: 16 sequences in micro-batches of 8 on one data-parallel rank."""
    run = run_of("vtrain/1")
    assert run.file["training"]["gradient_accumulation_steps"] == 2
    assert run.tokens == 16 * 1024
    assert run.file["parallelism"]["pipeline_parallel_size"] == 2


def test_experts_ranks_are_part_of_the_data_parallel_ranks() -> None:
    """dgxc prints replicas of experts: 1 x 2 on 8 GPUs with tp 4."""
    run = run_of("nvidia-dgxc-benchmarking/1")
    axes = run.file["parallelism"]
    assert (axes["data_parallel_size"], axes["expert_parallel_size"]) == (2, 2)
    assert run.file["training"]["gradient_accumulation_steps"] == 512


def test_seconds_from_flops_are_megatrons() -> None:
    """SC21's GPT 1.7B: the published iteration has 137 TFLOP/s on 32 GPUs."""
    run = run_of("megatron-sc21/1")
    flops = megatron_flops(run.row, run.tokens, 96)
    assert run.seconds == pytest.approx(flops / (137e12 * 32))
    assert run.origin == "FLOP/s"


def test_korthikantis_mfu_is_ours() -> None:
    """Table 5 prints the MFU of its runs by the formula with all pairs."""
    for number, printed in ((2, 41.5), (4, 51.4), (6, 56.0), (8, 56.3)):
        run = run_of(f"korthikanti-et-al-2022/{number}")
        assert 100 * mfu_of(run) == pytest.approx(printed, rel=0.02), run.row.id


def test_llm_foundrys_mfu_is_ours() -> None:
    """Its README has the same formula; learned positions count as weights, few in short runs."""
    used, _ = every_run()
    every = [run for run in used if run.source == "llm-foundry"]
    runs = [run for run in every if (run.row.seq or 0) <= 2048][::10]
    for run in runs:
        assert 100 * mfu_of(run) == pytest.approx(run.row.mfu_pct, rel=0.012), run.row.id


def mfu_of(run: TimedRun) -> float:
    """The measured MFU by our own formula."""
    made = resolved(run)
    flops = model_flops(made.run.arch, run.tokens, made.run.seq)
    return float(mfu(flops, run.seconds, run.row.n_gpus, peak_flops(run)))
