"""Equal layers that continue those before them are the ones that would be written."""

from __future__ import annotations

import re
from array import array

import pytest

from gpu_mem_calculator.estimates.stage_replay import StageRequests, stage_requests
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.read import read
from gpu_mem_calculator.training.engines import engine_names
from gpu_mem_calculator.training.step import cycles
from gpu_mem_calculator.training.step.cycles import (
    KeptNumbers,
    continued,
    follows,
    regular,
    shifted,
)
from gpu_mem_calculator.training.step.stream_writer import StreamWriter
from tests.golden.stored_runs import HERE, run_file, stored_settings

FILES = [path for name in engine_names() if (path := HERE / "training" / f"{name}.txt").exists()]
SETTINGS = [one for path in FILES for one in stored_settings(path) if "model.case" in one]
TWELVE = [re.sub(r"model\.case=\S+", "model.name=gpt2", one) for one in SETTINGS]  # layers
START = "model.name=gpt2 num_gpus=4"
KINDS = (
    "type=pytorch_ddp recompute=full gradient_accumulation_steps=3",
    "type=fsdp",
    "type=deepspeed zero_stage=2",
    "type=deepspeed zero_stage=3 gradient_accumulation_steps=2",
    "type=deepspeed zero_stage=3 recompute=full r=8",
    "type=deepspeed zero_stage=3 offload_param=cpu stage3_param_persistence_threshold=1",
    "type=megatron_lm",
)
FEW = [f"{kind} {START}" for kind in KINDS]


@pytest.mark.parametrize(
    "settings", [*FEW, *(pytest.param(one, marks=pytest.mark.proof) for one in TWELVE)]
)
def test_equal_layers_are_continued_as_they_are_written(
    settings: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the engine and its options, also on a small GPU."""
    try:
        asked = stage_requests(resolve(read(run_file(settings)).file), 0)
    except InputError:
        assert settings not in FEW
        return
    going_on: list[int] = []
    go_on = StreamWriter.go_on

    def count(writer: StreamWriter, *given: object) -> None:
        going_on.append(1)
        go_on(writer, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(StreamWriter, "go_on", count)
    monkeypatch.setattr(cycles, "FEWEST", 4)
    usual, tight = streams(asked)
    assert going_on or settings not in FEW
    monkeypatch.setattr(cycles, "FEWEST", 1 << 30)
    assert streams(StageRequests(asked.ledger, asked.micro_batches)) == (usual, tight)


def streams(asked: StageRequests) -> tuple[object, object]:
    """The usual stream, and that of a small GPU where it is another."""
    return asked.usual, None if asked.ledger.tight is None else asked.tight


def test_windows_continue_number_by_number() -> None:
    """New tensors have higher numbers, and frees lower ones; a tensor that stays keeps its own."""
    first, second = array("q", [10, ~10, ~7, 11]), array("q", [15, ~15, ~7, 16])
    assert list(continued(first, second, 2)) == [20, ~20, ~7, 21, 25, ~25, ~7, 26]
    assert list(shifted(first, 3)) == [13, ~13, ~10, 14]


def test_windows_are_regular_up_to_the_first_that_differs() -> None:
    """The fourth of five has another number; of windows without numbers all are regular."""
    rows = array("q", [1, ~1, 3, ~3, 5, ~5, 7, ~6, 9, ~9])
    assert regular(rows, 0, 2, 5) == 3
    assert regular(rows, 0, 2, 3) == 3
    assert regular(rows, 4, 0, 5) == 5


def test_blocks_follow_each_other_on_one_line() -> None:
    """At equal distances, and only those that were continued together."""
    first, second = [0, 1], [10, 11]
    line = [KeptNumbers(first, second, number) for number in range(4)]
    assert line[3].numbers() == [30, 31]
    assert follows(*line[:3])
    assert not follows(line[0], line[1], line[3])
    assert not follows(line[0], line[1], KeptNumbers([0, 1], second, 2))
