"""Each family's parameters and buffers, name by name, against what transformers 5.17.0 builds.

`shapes.json` was written by `record_shapes.py` from `cases.json` on the meta device; with torch
and transformers installed the record itself is checked too.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpu_mem_calculator.ledger.frameworks import TRANSFORMERS
from gpu_mem_calculator.models.arch.arch import Arch
from gpu_mem_calculator.models.families import read_config
from tests.corpus import sampled
from tests.models.families.record_shapes import record

HERE = Path(__file__).parent
CASES: dict[str, dict[str, Any]] = json.loads((HERE / "cases.json").read_text())
RECORD: dict[str, dict[str, Any]] = json.loads((HERE / "shapes.json").read_text())


TEXT = ("model.language_model.", "language_model.")


def recorded(case: str, part: str) -> dict[str, Any]:
    """The record of one case; of a multimodal model, the language model under its own names."""
    table: dict[str, Any] = RECORD[case][part]
    prefix = next((p for p in TEXT if any(name.startswith(p) for name in table)), None)
    if prefix is None:
        return table
    return {
        ("model." if prefix == TEXT[0] else "") + name.removeprefix(prefix)
        if name.startswith(prefix)
        else name: shape
        for name, shape in table.items()
        if name.startswith((prefix, "lm_head."))
    }


def shapes(arch: Arch) -> dict[str, list[int]]:
    """Every parameter's name and shape; a name given twice is an error."""
    weights = list(arch.weights())
    found = {w.name: [size for _, size in w.dims] for w in weights}
    assert len(found) == len(weights)
    return found


@pytest.mark.parametrize("case", CASES)
def test_parameters_match_transformers(case: str) -> None:
    """Every parameter has the name and the shape that transformers gives it, and no other is."""
    assert shapes(read_config(CASES[case])) == recorded(case, "parameters")


@pytest.mark.parametrize("case", [name for name in CASES if "vision_config" in CASES[name]])
def test_towers_match_transformers(case: str) -> None:
    """What stands beside the language model has every name and shape that transformers gives."""
    arch, table = read_config(CASES[case]), RECORD[case]["parameters"]
    rest = {n: shape for n, shape in table.items() if not n.startswith((*TEXT, "lm_head."))}
    assert {w.name: [size for _, size in w.dims] for w in arch.tower} == rest
    assert not arch.left_out


@pytest.mark.parametrize("case", [name for name in CASES if read_config(CASES[name]).trains])
def test_buffers_match_transformers(case: str) -> None:
    """Every buffer of a model that trains is as transformers has it."""
    found = {b.name: [list(b.shape), b.bits] for b in read_config(CASES[case]).buffers}
    assert found == recorded(case, "buffers")


@pytest.mark.parametrize("case", CASES)
def test_the_count_is_the_sum_over_the_record(case: str) -> None:
    """`num_parameters` is the sum over the recorded shapes, tied weights once."""
    total = 0
    for shape in recorded(case, "parameters").values():
        count = 1
        for size in shape:
            count *= size
        total += count
    assert read_config(CASES[case]).num_parameters == total


@pytest.mark.reference
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("case", sampled(CASES.keys(), keep=24))
def test_the_record_is_what_transformers_builds(case: str) -> None:
    """The recorded shapes are those that transformers 5.17.0 builds now."""
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    if transformers.__version__ != TRANSFORMERS.version:
        pytest.skip(f"the record is of transformers {TRANSFORMERS.version}")
    assert record(CASES[case]) == RECORD[case]
