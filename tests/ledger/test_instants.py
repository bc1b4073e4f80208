"""An instant says in fields what its name says in words."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator.core.resolve import resolve
from gpu_mem_calculator.core.runfile import read
from gpu_mem_calculator.ledger.ledger import FIRST, FIRST_STEP, LAST, LATER, instant
from gpu_mem_calculator.run.phases import STARTUP
from tests.properties.test_engines import RUNS


def test_a_name_is_made_of_step_micro_batch_and_moment() -> None:
    """In this order, those that there are."""
    assert instant("loss", "forward", "").name == "loss"
    found = instant("loss", "forward", "", step=FIRST_STEP, micro_batch=LATER)
    assert (found.name, found.usual) == ("first.later.loss", "later.loss")


def test_another_moment_keeps_step_and_micro_batch() -> None:
    """And no layer, unless one is given."""
    before = instant("backward.0.last", "backward", "", micro_batch=LATER, layer=LAST)
    after = before.moved("epilogue", title="gradients reduced")
    assert (after.name, after.micro_batch, after.layer) == ("later.epilogue", LATER, "")
    assert before.moved("backward.0.second", layer="second").layer == "second"


def test_the_first_step_may_have_a_moment_of_its_own() -> None:
    """Under another name."""
    found = instant("optimizer", "optimizer", "").in_first_step(title="first")
    assert (found.name, found.usual, found.title) == ("first.optimizer", "optimizer", "first")


def _words(name: str) -> dict[str, Any]:
    """What a name says."""
    step, micro = "", ""
    if name.startswith("first."):
        step, name = FIRST_STEP, name.removeprefix("first.")
    if name.startswith("later."):
        micro, name = LATER, name.removeprefix("later.")
    end = name.rpartition(".")[2]
    return {"step": step, "micro_batch": micro, "where": name,
            "layer": end if end in (FIRST, LAST) else ""}  # fmt: skip


@pytest.mark.parametrize("name", sorted(RUNS))
def test_every_engines_instants_have_their_fields(name: str) -> None:
    """Fields and names agree, at every instant of a step."""
    found = resolve(read(RUNS[name]))
    for one in found.engine.ledger(found.run).instants:
        if one.phase != STARTUP:
            said = {field: getattr(one, field) for field in ("step", "micro_batch", "where")}
            assert {**said, "layer": one.layer} == _words(one.name), one.name
