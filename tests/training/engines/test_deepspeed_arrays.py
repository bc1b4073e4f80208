"""DeepSpeed: an array of runs is what single runs are, pipelines included."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpu_mem_calculator.ledger.ledger import Ledger
from gpu_mem_calculator.ledger.remember import forget
from gpu_mem_calculator.runfile.config import ModelConfig
from gpu_mem_calculator.runfile.find_model.model_source import find_model
from gpu_mem_calculator.training.engines.deepspeed.engine import ENGINE

from .test_deepspeed import ONE, TINY, book, make


def same(many: Ledger, ones: list[Ledger]) -> None:
    """Arrays give what single runs give, instant by instant."""
    for place in ("gpu", "cpu", "nvme"):
        peaks = np.broadcast_to(many.peak(place), len(ones))
        assert [int(p) for p in peaks] == [int(one.peak(place)) for one in ones]


@pytest.mark.parametrize(
    "more",
    [
        {"zero_stage": 0},
        {"zero_stage": 1},
        {"zero_stage": 2},
        {"zero_stage": 3},
        {"zero_stage": 2, "offload_optimizer": "cpu"},
        {"zero_stage": 3, "offload_optimizer": "nvme", "offload_param": "cpu"},
        {"zero_stage": 3, "recompute": "full"},
        {"zero_stage": 2, "arch": ONE},
        {
            "zero_stage": 1,
            "arch": ONE,
            "offload_optimizer": "cpu",
            "reduce_bucket_size": 50_000_000,
        },
        {
            "zero_stage": 2,
            "arch": ONE,
            "offload_optimizer": "cpu",
            "reduce_bucket_size": 50_000_000,
        },
    ],
)
def test_arrays_equal_single_runs(more: dict[str, Any]) -> None:
    """A search over ranks, batches and micro-batches gives the same bytes as one run each."""
    dps, batches, steps = (1, 2, 3, 8, 64), (1, 2, 4, 1, 2), (1, 1, 4, 8, 2)
    many = book(dp=np.array(dps), batch=np.array(batches), micro_batches=np.array(steps), **more)
    ones = [
        book(dp=d, batch=b, micro_batches=m, **more)
        for d, b, m in zip(dps, batches, steps, strict=True)
    ]
    same(many, ones)


@pytest.mark.parametrize("offload", ["none", "cpu"])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_numbers_of_micro_batches_do_not_mix(stage: int, offload: str) -> None:
    """What is remembered of a step of one number of micro-batches is right for no other."""
    options = {"zero_stage": stage, "offload_optimizer": offload}
    peaks: list[list[int]] = []
    for order in ((1, 2, 3), (3, 2, 1)):
        forget()
        found = {m: int(book(micro_batches=m, **options).peak()) for m in order}
        peaks.append([found[m] for m in (1, 2, 3)])
    assert peaks[0] == peaks[1]
    fresh = []
    for m in (1, 2, 3):
        forget()
        fresh.append(int(book(micro_batches=m, **options).peak()))
    assert peaks[0] == fresh


@pytest.mark.parametrize("stage", [0, 1, 3])
def test_learnt_positions_are_summed_over_several_sequences(stage: int) -> None:
    """One sequence has nothing to sum, in an array, too."""
    small = find_model(ModelConfig(name="gpt2")).arch
    many = book(small, batch=np.array([1, 2]), seq=512, zero_stage=stage)
    same(many, [book(small, batch=size, seq=512, zero_stage=stage) for size in (1, 2)])


@pytest.mark.parametrize("stage", [0, 1])
def test_pipeline_arrays_equal_single_runs(stage: int) -> None:
    """Stages of several pipelines at once give the same bytes as one run each."""
    pps, stages = (2, 2, 4, 4), (0, 1, 0, 3)
    many = ENGINE.ledger(
        make(zero_stage=stage, pp=np.array(pps), stage=np.array(stages), micro_batches=8)
    )
    same(
        many,
        [
            book(zero_stage=stage, pp=p, stage=s, micro_batches=8)
            for p, s in zip(pps, stages, strict=True)
        ],
    )


def test_pipeline_stages_cover_every_layer() -> None:
    """No layer is lost, and the first stage holds most micro-batches."""
    run = make(zero_stage=1, pp=4, micro_batches=8)
    assert ENGINE.stage_layers is not None
    assert sum(ENGINE.stage_layers(run)) == 22
    peaks = [book(zero_stage=1, pp=4, stage=s, micro_batches=8).peak() for s in range(4)]
    assert peaks[1] > peaks[2]


@pytest.mark.parametrize("stage", [0, 1])
def test_an_array_of_pipelines_gives_what_single_runs_give(stage: int) -> None:
    """Sizes above 1 are one structure, and so are runs of one stage."""
    for sizes in ([2, 4], [1, 1]):
        pp = np.array(sizes, dtype=np.int64)
        many = np.broadcast_to(book(TINY, pp=pp, zero_stage=stage).peak(), pp.shape)
        alone = [int(book(TINY, pp=one, zero_stage=stage).peak()) for one in sizes]
        assert many.tolist() == alone


def test_an_array_that_mixes_one_stage_with_several_is_refused() -> None:
    """One stage and several are two engines: no single ledger is right for both."""
    run = make(TINY, pp=np.array([1, 2, 4], dtype=np.int64), zero_stage=1)
    with pytest.raises(ValueError, match="mixes 1 with larger sizes"):
        ENGINE.ledger(run)
