"""The table of a step: which instants it shows, and how they are labelled."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator.estimates.calculator import full_estimate
from gpu_mem_calculator.ledger.units import GIB
from gpu_mem_calculator.report.lines import LIMIT, plain
from gpu_mem_calculator.report.steps import ROWS, picture, step_picture

SMALL = {"hidden_size": 64, "num_layers": 6, "num_attention_heads": 4, "vocab_size": 512}
ENGINES: dict[str, dict[str, Any]] = {
    "ddp": {"type": "pytorch_ddp"},
    "fsdp": {"type": "fsdp"},
    "zero-3": {"type": "deepspeed", "zero_stage": 3},
    "megatron": {"type": "megatron_lm"},
}


def _step(engine: str, **training: Any) -> list[str]:
    run = {
        "model": {**SMALL, "max_seq_len": 64},
        "training": {"batch_size": 1, "gradient_accumulation_steps": 4, **training},
        "parallelism": {"data_parallel_size": 4},
        "engine": ENGINES[engine],
        "hardware": {"gpu": "h100-80gb-sxm", "num_gpus": 4},
    }
    return plain(step_picture(full_estimate(run))).splitlines()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_step_has_its_optimizer_step_and_no_label_twice(engine: str) -> None:
    """In at most ROWS rows; what FSDP does in a block is part of the block's row."""
    lines = _step(engine)
    labels = [one[2:38].strip() for one in lines[1:-1] if one.strip()[:1] not in "("]
    assert len(labels) <= ROWS
    assert len(labels) == len(set(labels))
    assert "optimizer step" in labels
    assert any(label.startswith("start-up") for label in labels)
    assert not any("made" in label or "…" in label for label in labels)


def _row(title: str, phase: str, gib: float) -> tuple[dict[str, Any], int]:
    size = int(gib * GIB)
    return {"title": title, "phase": phase, "bytes": {"param": size}}, size


def test_the_highest_of_each_phase_stays() -> None:
    """Of more rows the lowest are left out, but not a whole phase."""
    rows = [_row("start-up", "startup", 1)]
    rows += [_row(f"backward, layer {i}", "backward", 100 + i) for i in range(20)]
    rows += [_row("optimizer step", "optimizer", 2)]
    text = plain(picture("one step", rows, rows[20][0], 80 * GIB))
    assert all(label in text for label in ("start-up", "optimizer step", "layer 19"))
    assert "layer 7 " not in text
    assert "(8 lower instants left out)" in text


@pytest.mark.parametrize("gib", [999, 1_000, 123_456])
def test_a_label_never_touches_its_number(gib: int) -> None:
    """However long the label and large the number; the line stays in 80 columns."""
    rows = [_row("backward, dense layers: highest layer, later micro-batch", "backward", gib)]
    line = plain(picture("one step", rows, None, 80 * GIB)).splitlines()[1]
    assert f" {gib:,}.00 " in line
    assert len(line) <= 80


@pytest.mark.parametrize("gib", [50, 80])
def test_the_limit_is_marked_once(gib: int) -> None:
    """Right of the bar, also where the bar ends at it."""
    (line,) = plain(
        picture("one step", [_row("step", "forward", gib)], None, 80 * GIB)
    ).splitlines()[1:2]
    assert line.count(LIMIT) == 1
    assert line.endswith(LIMIT)
