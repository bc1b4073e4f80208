"""The fields of an instant agree with its name."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator.ledger.ledger import FIRST, FIRST_STEP, LAST, LATER, instant
from gpu_mem_calculator.run.phases import STARTUP
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.tools.read import read
from tests.properties.test_engines import RUNS


def test_a_name_has_step_micro_batch_and_place() -> None:
    """In this order; parts that are empty are left out."""
    assert instant("loss", "forward", "").name == "loss"
    later = instant("loss", "forward", "", step=FIRST_STEP, micro_batch=LATER)
    assert (later.name, later.usual) == ("first.later.loss", "later.loss")


def test_a_moved_instant_keeps_step_and_micro_batch() -> None:
    """Its layer is dropped, unless one is named."""
    before = instant("backward.0.last", "backward", "", micro_batch=LATER, layer=LAST)
    after = before.moved("epilogue", title="gradients reduced")
    assert (after.name, after.micro_batch, after.layer) == ("later.epilogue", LATER, "")
    assert before.moved("backward.0.second", layer="second").layer == "second"


def test_the_first_step_may_have_a_separate_instant() -> None:
    """It has another name and the same usual name."""
    first = instant("optimizer", "optimizer", "").in_first_step(title="first")
    assert (first.name, first.usual, first.title) == ("first.optimizer", "optimizer", "first")


def _words(name: str) -> dict[str, Any]:
    """The fields that a name stands for."""
    step, micro = "", ""
    if name.startswith("first."):
        step, name = FIRST_STEP, name.removeprefix("first.")
    if name.startswith("later."):
        micro, name = LATER, name.removeprefix("later.")
    end = name.rpartition(".")[2]
    return {
        "step": step,
        "micro_batch": micro,
        "where": name,
        "layer": end if end in (FIRST, LAST) else "",
    }


@pytest.mark.parametrize("name", sorted(RUNS))
def test_every_engines_instants_have_their_fields(name: str) -> None:
    """Fields and names agree, at every instant of a step."""
    resolved = resolve(read(RUNS[name]).file)
    for each in resolved.engine.ledger(resolved.run).instants:
        if each.phase != STARTUP:
            fields = {field: getattr(each, field) for field in ("step", "micro_batch", "where")}
            assert {**fields, "layer": each.layer} == _words(each.name), each.name
