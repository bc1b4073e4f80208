"""The ZeRO paper (arXiv 1910.02054): Figure 1, Table 1 and Table 2.

Table 1 is printed to three significant digits or whole gigabytes, some figures rounded and some
cut off (2218.75 is printed 2218, 30.35 is printed 30.4), so each figure is held to less than one
unit of its last printed digit. Figure 1 is rounded. All gigabytes are decimal.
"""

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from gpu_mem_calculator.estimates.published.formulas import (
    zero_communication_volume,
    zero_model_states,
)

DATA = Path(__file__).parent / "data" / "zero_paper.jsonl"
V100_BYTES = 32 * 10**9
STAGES = {"baseline": 0, "Pos": 1, "Pos+g": 2, "Pos+g+p": 3}


def _rows(prefix: str) -> list[Any]:
    """The rows whose id begins with `prefix`, as parameters of a test."""
    rows = (json.loads(line) for line in DATA.read_text().splitlines())
    return [pytest.param(row, id=row["id"]) for row in rows if row["id"].startswith(prefix)]


def _last_digit(value: float) -> Decimal:
    """One unit of the last digit a figure was printed with."""
    exponent = Decimal(str(value)).as_tuple().exponent
    assert isinstance(exponent, int)
    return Decimal(1).scaleb(min(exponent, 0))


def test_every_row_is_there() -> None:
    """Figure 1 has 4 bars, Table 1 three models × six degrees × three stages, Table 2 30 sizes."""
    counts = [len(_rows(prefix)) for prefix in ("zero_fig1/", "zero_table1/", "zero_table2/")]
    assert counts == [4, 54, 30]


@pytest.mark.parametrize("row", _rows("zero_fig1/"))
def test_figure_1(row: dict[str, Any]) -> None:
    """The bars of Figure 1 are the formula, rounded to a tenth."""
    model_states = zero_model_states(row["params_b"] * 1e9, row["dp"], row["zero"])
    assert round(model_states / 1e9, 1) == row["value"]


@pytest.mark.parametrize("row", _rows("zero_table1/"))
def test_table_1(row: dict[str, Any]) -> None:
    """Every figure of Table 1 is within one unit of its last printed digit."""
    model_states = zero_model_states(row["params_b"] * 1e9, row["dp"], row["zero"])
    off = Decimal(model_states) / 10**9 - Decimal(str(row["value"]))
    assert abs(off) < _last_digit(row["value"])


@pytest.mark.parametrize("row", _rows("zero_table2/mp1/theo"))
def test_table_2_theoretical_sizes(row: dict[str, Any]) -> None:
    """The largest model of Table 2 fills 32 GB, and a tenth of a billion more does not fit."""
    stage = STAGES[row["id"].rsplit("theo_", 1)[1]]
    size = round(row["value"] * 1e9)
    assert zero_model_states(size, row["dp"], stage) <= V100_BYTES
    assert zero_model_states(size + 10**8, row["dp"], stage) > V100_BYTES


@pytest.mark.parametrize("row", _rows("zero_table2/"))
def test_table_2_scales_with_model_parallelism(row: dict[str, Any]) -> None:
    """Every size of Table 2, theoretical or measured, fits when model parallelism shards it."""
    stage = STAGES[row["id"].rsplit("_", 1)[1]]
    share = round(row["value"] * 1e9 / row["tp"])
    assert zero_model_states(share, row["dp"], stage) <= V100_BYTES


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_one_gpu_holds_everything(stage: int) -> None:
    """On one GPU no stage saves anything."""
    assert zero_model_states(7_500_000_000, 1, stage) == 16 * 7_500_000_000


def test_uneven_shares_round_up() -> None:
    """16 × 7 bytes over three GPUs are 38 bytes on the fullest."""
    assert zero_model_states(7, 3, 3) == 38


def test_parameter_partitioning_costs_half_as_much_again() -> None:
    """Section 7: stage 3 moves 1.5 times what data parallelism moves."""
    baseline = zero_communication_volume(10**9, 0)
    assert zero_communication_volume(10**9, 3) * 2 == 3 * baseline


def test_unknown_stage_is_refused() -> None:
    """There is no stage 4."""
    with pytest.raises(ValueError, match="stage=4 is not a ZeRO stage; try 0, 1, 2 or 3"):
        zero_model_states(10**9, 8, 4)
