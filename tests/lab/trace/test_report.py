"""The report of a trace."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import astuple

pytest.importorskip("torch")

from gpu_mem_calculator.estimates.calculator import full_estimate
from gpu_mem_calculator.lab.backtest.phases import phase_peaks
from gpu_mem_calculator.lab.trace.diff import difference
from gpu_mem_calculator.lab.trace.run import trace
from gpu_mem_calculator.report.lines import plain
from gpu_mem_calculator.report.tracing import (
    TraceReport,
    place,
    shown,
    tracing_data,
    tracing_report,
)

from .conftest import tiny_run

if TYPE_CHECKING:
    from gpu_mem_calculator.lab.trace.run import RunTrace


def report_of(found: RunTrace, *, diff: bool = False, advice: str = "") -> TraceReport:
    """The tiny run's report."""
    estimate = full_estimate(tiny_run())
    peaks = phase_peaks(estimate.ledger, tuple(found.phases), 1)
    compared = difference(estimate.ledger, found.ledger, found.peak_phase, peaks) if diff else None
    return TraceReport(
        trace=found,
        estimate=estimate,
        advice=advice,
        num_parameters=1,
        num_trained=1,
        difference=compared,
    )


def text_of(found: RunTrace, *, diff: bool = False, advice: str = "") -> str:
    """The tiny run's report as text."""
    return plain(tracing_report(report_of(found, diff=diff, advice=advice)))


def test_it_is_80_columns_wide(traced: RunTrace) -> None:
    """No line is longer, with everything that can be in it."""
    text = text_of(traced, diff=True, advice="`expandable_segments:True` lets " + "x" * 70)
    assert max(map(len, text.splitlines())) <= 80


def test_the_four_numbers_are_there(traced: RunTrace) -> None:
    """Each in a row, under the names that an estimate has, too."""
    figures = {
        "allocated": traced.allocated_bytes,
        "reserved": traced.reserved_bytes,
        "torch needs": traced.needs_bytes,
        "nvidia-smi": traced.device_bytes,
    }
    for name, size in figures.items():
        (line,) = (row for row in text_of(traced).splitlines() if row.startswith(f"  {name} "))
        assert f" {size / 2**30:,.2f}  " in line


def test_the_verdict_counts_what_cuda_takes(traced: RunTrace) -> None:
    """What torch needs, and what is outside it; with the margin it is certain."""
    found = report_of(traced)
    word, needs, margin, has, headroom, *_ = astuple(found.verdict)
    assert needs == traced.needs_bytes + found.outside_torch_bytes
    assert (word, margin, headroom) == ("fits", traced.margin_bytes, has - needs - margin)
    assert re.search(rf"needs {(needs + margin) / 2**30:.1f} of 79.1", text_of(traced))


def test_the_timeline_has_the_first_and_the_last_step(traced: RunTrace) -> None:
    """Start-up and three phases of both; the one between them is like the last."""
    names = [instant.name for instant in shown(traced.ledger, "s2.a0.bwd")]
    assert names == [
        "model",
        "s0.a0.fwd",
        "s0.a0.bwd",
        "s0.opt",
        "s2.a0.fwd",
        "s2.a0.bwd",
        "s2.opt",
    ]


def test_of_many_micro_batches_two_are_shown() -> None:
    """The first of a step, and of the later ones the highest."""
    found = trace(tiny_run(gradient_accumulation_steps=4), steps=1)
    names = [instant.name for instant in shown(found.ledger, found.peak_phase)]
    assert len([name for name in names if name.endswith("bwd")]) == 2


def test_exactly_one_peak_is_marked(traced: RunTrace) -> None:
    """And it is in the last step, which the steps after it are like."""
    marked = [line for line in text_of(traced).splitlines() if line.startswith("►")]
    assert len(marked) == 1
    assert report_of(traced).peak.name.startswith("s2.")


def test_the_largest_have_module_operation_and_line(traced: RunTrace) -> None:
    """Ten of them, each in two lines."""
    lines = text_of(traced).splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("largest at the peak"))
    text = "\n".join(lines[start : start + 21])
    assert "model.layers.*.mlp.up_proj" in text
    assert "mm, transformers/modeling_llama.py:" in text
    assert "2 × 64.00 KiB" in text
    assert lines[start + 21].endswith("more, in --format json")


def test_kernels_that_cost_memory_are_told() -> None:
    """fp32 with fewer key-value heads falls to the math path, and the report says so."""
    found = trace(tiny_run(precision="fp32"), steps=1)
    assert "note: attention runs in torch's math path" in text_of(found)


def test_the_difference_has_signs_and_no_empty_rows(traced: RunTrace) -> None:
    """Rows that do not differ are named in a line."""
    text = text_of(traced, diff=True)
    assert "the estimate against this trace, in MiB" in text
    assert "no difference: " in text
    assert "+0.00" not in text


def test_data_has_every_entry(traced: RunTrace) -> None:
    """The entries alive at the peak add up to what is allocated."""
    data = tracing_data(report_of(traced, diff=True))
    assert sum(e["bytes_at_peak"] for e in data["entries"]) == data["allocated_bytes"]
    assert data["phases"]["s1.a0.bwd"]["peak_bytes"] == traced.phases["s1.a0.bwd"].peak_bytes
    assert sum(data["at_peak"].values()) == data["allocated_bytes"]
    assert data["difference"]["kinds"]


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        (
            "/v/lib/python3.11/site-packages/transformers/models/llama/modeling_llama.py:175",
            "transformers/modeling_llama.py:175",
        ),
        ("/home/me/project/train.py:3", "project/train.py:3"),
        (
            "torch 2.11 c10/cuda/CUDACachingAllocator.cpp round_size",
            "torch 2.11 c10/cuda/CUDACachingAllocator.cpp round_size",
        ),
    ],
)
def test_places_are_short(source: str, shown: str) -> None:
    """A package and its file, or the source as it is."""
    assert place(source) == shown


def test_places_below_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's own files are named from where they are."""
    monkeypatch.chdir(tmp_path)
    assert place(f"{tmp_path}/src/train.py:3") == "src/train.py:3"
