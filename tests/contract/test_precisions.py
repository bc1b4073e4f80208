"""Every precision is whole, under every engine. A message says what to add."""

from __future__ import annotations

from typing import get_args

import pytest

from gpu_mem_calculator.runfile.config import TrainingConfig
from gpu_mem_calculator.runfile.read import key_types
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.read import read
from gpu_mem_calculator.training.engines import engine_names, engine_row
from tests.conftest import ROOT, small_run
from tests.contract.measured import values


def names() -> tuple[str, ...]:
    """The values of the key."""
    literal, _ = get_args(key_types(TrainingConfig)["precision"])
    return get_args(literal)


PAIRS = [(name, one) for name in names() for one in engine_names()]


@pytest.mark.parametrize(("name", "of"), PAIRS)
def test_an_engine_has_a_precision_or_refuses_it(name: str, of: str) -> None:
    """Its row says what weights and gradients are in, for memory and for seconds; else its name is
    in the sentence.
    """
    try:
        found = resolve(read(small_run(of, 1, training={"precision": name})).file)
    except InputError as error:
        assert name in str(error), str(error)
        return
    precision = engine_row(of).precision(found.run)
    assert precision.weights in (16, 32), f"training/engines/{of}: PRECISIONS lacks {name!r}"
    assert found.engine.ledger(found.run).peak()


@pytest.mark.parametrize("name", names())
def test_a_precision_was_measured(name: str) -> None:
    """In a run of this repository."""
    assert name in values("training", "precision"), (
        f"no measured run of tests/ground_truth or tests/new_runs has precision={name!r}: measure "
        "one (gpu-mem-calc measure)"
    )


@pytest.mark.parametrize("name", names())
def test_a_precision_is_documented(name: str) -> None:
    """In the guide to engines."""
    text = (ROOT / "docs" / "engines.md").read_text(encoding="utf-8")
    assert f"`{name}`" in text, (
        f"docs/engines.md: add a row for {name!r} to the table of precisions"
    )
