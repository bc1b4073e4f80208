"""What ran in public fits, but for rows that are listed with their cause. The list only shrinks."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

import pytest

from gpu_mem_calculator.estimates.calculator import full_estimate
from gpu_mem_calculator.runfile.text.errors import InputError

from .rows import VTRAIN
from .translate import TimedRun, every_run

SHORT = "does_not_fit"
EVERY = 16  # of vTrain's sweep, one run of this many
# llm-foundry's MPT has flash-attn's loss by default (llmfoundry/models/mpt/modeling_mpt.py,
# loss_fn: fused_crossentropy), of logits in bf16.
LOSSES = {"llm-foundry": "flash_fused_no_upcast"}

DGXC, STAS00 = "nvidia-dgxc-benchmarking", "stas00-ml-engineering"
BF16_GRADIENTS = "main gradients count in fp32; NeMo may keep them in bf16, which no row says"
CAUSES: dict[str, tuple[str, ...]] = {
    BF16_GRADIENTS: (
        *(f"{DGXC}/{number}" for number in (13, 14, 34, 83, 118, 119, 139)),
        *(f"{DGXC}/{number}" for number in (223, 235, 260, 261, 295)),
    ),
    "not known: Nemotron-4 340B on 128 GPUs, 5.8 GiB too high with gradients in bf16, too": (
        f"{DGXC}/82",
    ),
    "Liger's fused loss is not modelled under ZeRO-3, so all logits of a sequence count": (
        *(f"{STAS00}/{number}" for number in (9, 11)),
    ),
    "Meta's own stack, of which the paper gives neither recompute nor the dtype of gradients": (
        *(f"llama3-paper/{number}" for number in (1, 2)),
    ),
}
"""Rows whose tensors alone are more than the card, by what is not known or not modelled."""
REPLAYED: dict[str, tuple[str, ...]] = {
    "a table of 250,000 words in Megatron-DeepSpeed, 1.8 GiB too high": (
        "bigscience-workshop-bigscience/54",
    ),
    "main gradients in fp32, as above": (*(f"{DGXC}/{number}" for number in (15, 120, 262)),),
    "Liger's fused loss, as above": (f"{STAS00}/7",),
}
"""Rows that are too high only with what the allocator adds."""


def listed(causes: dict[str, tuple[str, ...]]) -> set[str]:
    """The ids of a list."""
    return {one for ids in causes.values() for one in ids}


def file_of(run: TimedRun) -> dict[str, Any]:
    """The run file, with the loss that its source has."""
    if run.source not in LOSSES:
        return run.file
    return {**run.file, "training": {**run.file["training"], "loss": LOSSES[run.source]}}


def verdict(run: TimedRun, *, replay: bool) -> str:
    """The verdict, empty for a run that is refused."""
    try:
        return full_estimate(file_of(run), replay=replay).result.verdict
    except InputError:
        return ""


@cache
def by_ledger() -> dict[str, str]:
    """The verdict of each row without a replay; of vTrain's sweep, of some."""
    rows = [run for run in every_run()[0] if run.source != VTRAIN]
    rows += [run for run in every_run()[0] if run.source == VTRAIN][::EVERY]
    return {run.row.id: verdict(run, replay=False) for run in rows}


def short(verdicts: Iterable[tuple[str, str]]) -> set[str]:
    """The rows that do not fit."""
    return {row for row, word in verdicts if word == SHORT}


def test_what_ran_in_public_fits() -> None:
    """By tensors alone: none but the listed rows, and all of those, so that one that fits is taken
    off the list.
    """
    assert short(by_ledger().items()) == listed(CAUSES)


def test_gradients_in_bf16_are_the_cause() -> None:
    """With them each row that has this cause may fit."""
    option = {"accumulate_allreduce_grads_in_fp32": False}
    for run in every_run()[0]:
        if run.row.id in CAUSES[BF16_GRADIENTS]:
            file = {**run.file, "engine": {**run.file["engine"], **option}}
            assert full_estimate(file, replay=False).result.verdict != SHORT, run.row.id


def test_most_rows_are_estimated() -> None:
    """Few are refused."""
    words = list(by_ledger().values())
    assert words.count("") < len(words) / 20
    assert words.count("fits") > len(words) / 2


@pytest.mark.proof
def test_what_ran_in_public_fits_with_the_allocator() -> None:
    """The same with the replay, of the rows that the tensors leave open."""
    left = [run for run in every_run()[0] if by_ledger().get(run.row.id) == "cannot_tell"]
    found = short((run.row.id, verdict(run, replay=True)) for run in left)
    assert found == listed(REPLAYED)
