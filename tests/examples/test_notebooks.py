"""Notebooks run in a real kernel, as a reader would run them."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from tests.conftest import ROOT

LESSON = ROOT / "examples" / "notebooks" / "memory_of_a_training_step.ipynb"


def executed(notebook: Any) -> Any:
    """A notebook with its outputs; a cell that fails raises."""
    NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    return notebook


@cache
def lesson() -> list[Any]:
    """The cells of the lesson with their outputs."""
    cells: list[Any] = executed(nbformat.read(LESSON, as_version=4)).cells
    return cells


def output(cells: list[Any], word: str) -> str:
    """The text and HTML that the first cell of code with a word puts out."""
    cell = next(one for one in cells if one.cell_type == "code" and word in one.source)
    every = [one.get("data") or {"text": one["text"]} for one in cell.outputs]
    return "\n".join(str(text) for one in every for text in one.values())


def test_the_lesson_is_stored_without_outputs() -> None:
    """So that its differences can be read; about fifteen cells, the last ones are exercises."""
    stored = nbformat.read(LESSON, as_version=4)
    nbformat.validate(stored)
    assert all(
        not one.outputs and one.execution_count is None for one in stored.cells if "outputs" in one
    )
    assert 15 <= len(stored.cells) <= 20
    assert "## Exercises" in stored.cells[-2].source


def test_what_the_lesson_says_is_what_its_cells_show() -> None:
    """Each claim of the text beside the output that it is about."""
    cells = lesson()
    assert "does not fit" not in output(cells, "result = estimate(run)")
    assert "<svg" in output(cells, "result.plot()")
    steps = re.findall(r"step (\d): ([\d.]+) GiB, highest in (\w+)", output(cells, "result.steps"))
    (_, first, _), (_, second, phase) = steps
    assert float(first) < float(second)
    assert phase == "backward"
    counted = re.findall(r"([\d.]+) GiB", output(cells, "AdamW's states"))
    weights, gradients, states, temporaries = map(float, counted)
    assert weights == gradients == temporaries
    assert states == pytest.approx(2 * weights, abs=0.02)
    sizes = re.findall(r"(\w+) +([\d.]+) GiB, highest in (.+)", output(cells, "recompute = "))
    none, selective, full = sizes
    assert none[1:] == selective[1:]
    assert float(full[1]) < float(none[1])
    assert full[2] == "optimizer step"
    stages = re.findall(r"paper +([\d.]+), peak of a GPU +([\d.]+)", output(cells, "zero_stage="))
    assert all(float(states) < float(peak) for states, peak in stages)
    assert [peak for _, peak in stages] == sorted(
        (one[1] for one in stages), key=float, reverse=True
    )
    four = re.findall(r"(\w+) +([\d.]+) GiB", output(cells, '"allocated", result'))
    assert [name for name, _ in four] == ["allocated", "needs", "reserved", "device"]
    assert sorted(four, key=lambda one: float(one[1])) == four
    gaps = [float(one) for one in re.findall(r"reserves ([\d.]+)", output(cells, "gaps = "))]
    assert gaps[1] < gaps[0]


def test_twice_the_batch_and_half_the_sequence_take_the_same() -> None:
    """As the lesson says of its grid; small batches hardly differ."""
    rows = re.findall(
        r"<td>(\d+)</td><td>(\d+)</td>.*?>([\d.]+)</span>", output(lesson(), "grid = ")
    )
    sizes = {(int(batch), int(length)): float(size) for batch, length, size in rows}
    assert len(sizes) == 12
    assert sizes[2, 4096] == pytest.approx(sizes[4, 2048], rel=0.01)
    assert sizes[1, 1024] == pytest.approx(sizes[2, 1024], rel=0.03)


def test_the_magic_works_in_a_kernel() -> None:
    """A cell is checked without being run, and run where it is asked to."""
    cells = [
        "%load_ext gpu_mem_calculator\nname = 'Qwen/Qwen2.5-7B'",
        "%%gpu_mem_check --gpu h100-80gb-sxm\nran = 1\n!vllm serve {name}",
        "'ran' in globals()",
        "%%gpu_mem_check --gpu h100-80gb-sxm --run\nran = 1\nif not ran:\n    !vllm serve {name}",
        "ran",
    ]
    made = [nbformat.v4.new_code_cell(one) for one in cells]
    found = executed(nbformat.v4.new_notebook(cells=made)).cells
    assert "fits" in output(found, "ran = 1\n!vllm")
    assert found[1].outputs[0]["data"]["text/html"].startswith('<div class="gpu-mem">')
    assert output(found, "globals()") == "False"
    assert found[4].outputs[0]["data"]["text/plain"] == "1"
