"""Korthikanti et al. (arXiv 2205.05198): Table 2, Figure 1 and Figure 7.

The rows come from the copy of the paper's figures in calculon-ai/calculon at caa4b11f8fe1. Those
of Figure 1 are labelled as digitised, yet each is the paper's closed form to the last bit, so they
are held exactly; read them as the formula's values, not as an independent measurement. Its states
are 18 bytes a parameter (fp32 main gradients) of 12h² a layer, without embeddings. Those of
Figure 7 are digitised from the bars, in percent; their error is that of reading a bar, and they
are held to 0.15 of a percentage point (the worst is 0.14).
"""

import json
from pathlib import Path
from typing import Any, get_args

import pytest

from gpu_mem_calculator.estimates.published.formulas import (
    Technique,
    korthikanti_first_stage_bytes,
    korthikanti_layer_bytes,
    layer_activation_bytes,
)

GIB = 2**30
DATA = Path(__file__).parent / "data" / "korthikanti.jsonl"
GPT3 = (2048, 1, 12288, 96)
"""Sequence, micro-batch, hidden size and heads of GPT-3 175B."""
FIGURE_7: dict[str, Technique] = {
    "sp": "tensor_sequence",
    "selective": "tensor_selective",
    "sp+selective": "tensor_sequence_selective",
    "full": "full",
}


def _rows(part: str) -> list[Any]:
    """The rows whose id contains `part`, as parameters of a test."""
    rows = (json.loads(line) for line in DATA.read_text().splitlines())
    return [pytest.param(row, id=row["id"]) for row in rows if part in row["id"]]


def _layer(row: dict[str, Any], technique: Technique) -> int:
    """Bytes of one layer of a row's model."""
    shape = (row["seq_len"], row["mbs"], row["hidden"], row["heads"])
    return korthikanti_layer_bytes(*shape, row["tp"], technique)


def test_every_row_is_there() -> None:
    """Four models: three bars each in Figure 1, four in Figure 7."""
    assert [len(_rows(part)) for part in ("params_opt", "fig1/", "fig7/")] == [4, 12, 16]


@pytest.mark.parametrize(
    ("technique", "tensor_parallel", "gib"),
    [
        ("none", 1, 256.5),
        ("tensor", 8, 51.75),
        ("tensor_sequence", 8, 32.0625),
        ("tensor_selective", 8, 29.25),
        ("tensor_sequence_selective", 8, 9.5625),
        ("full", 8, 4.5),
    ],
)
def test_table_2_for_gpt3(technique: Technique, tensor_parallel: int, gib: float) -> None:
    """The six rows of Table 2 over the 96 layers of GPT-3: as/h is 16, so the score term is 80."""
    layer = korthikanti_layer_bytes(*GPT3, tensor_parallel, technique)
    assert 96 * layer / GIB == gib


def test_first_row_is_equation_1() -> None:
    """Without parallelism the table's layer is 34sbh + 5as²b."""
    assert korthikanti_layer_bytes(*GPT3) == layer_activation_bytes(*GPT3)


@pytest.mark.parametrize("technique", get_args(Technique))
def test_one_gpu_has_nothing_to_cut(technique: Technique) -> None:
    """On one GPU tensor and sequence parallelism change nothing, only recompute does."""
    sbh, scores = 2048 * 12288, 96 * 2048 * 2048
    whole = {"full": 2 * sbh}.get(technique, 34 * sbh)
    kept = 0 if technique == "full" or "selective" in technique else 5 * scores
    assert korthikanti_layer_bytes(*GPT3, 1, technique) == whole + kept


@pytest.mark.parametrize("row", _rows("params_opt"))
def test_figure_1_states(row: dict[str, Any]) -> None:
    """The lower bars of Figure 1 are 18 bytes for each of a GPU's 12h² a layer."""
    params = 12 * row["hidden"] ** 2 * row["n_layers"]
    assert 18 * params / (row["tp"] * row["pp"]) / GIB == row["value"]


@pytest.mark.parametrize("row", _rows("/act_"))
def test_figure_1_activations(row: dict[str, Any]) -> None:
    """The upper bars are the layers of the first stage, before and after the paper's techniques."""
    after = "sp_selective" in row["id"]
    layer = _layer(row, "tensor_sequence_selective" if after else "tensor")
    stages = (row["n_layers"], row["pp"], row.get("vpp", 1))
    assert korthikanti_first_stage_bytes(layer, *stages) / GIB == row["value"]


@pytest.mark.parametrize("row", _rows("fig7/"))
def test_figure_7(row: dict[str, Any]) -> None:
    """Each technique's share of the tensor-parallel baseline, in percent."""
    share = _layer(row, FIGURE_7[row["technique"]]) / _layer(row, "tensor")
    assert 100 * share == pytest.approx(row["value"], abs=0.15)


def test_plain_pipeline_keeps_all_layers() -> None:
    """The first stage of 1F1B keeps p micro-batches of L/p layers: L layers for every p."""
    assert korthikanti_first_stage_bytes(10, 96, pipeline_parallel=8) == 960


def test_interleaving_keeps_more() -> None:
    """With three interleaved stages on each of eight GPUs the first keeps 1 + 7/24 times L."""
    assert korthikanti_first_stage_bytes(10, 96, 8, interleaved_stages=3) == 960 + 280


def test_tensor_parallelism_needs_its_row() -> None:
    """A degree above one with the row that has none is refused."""
    with pytest.raises(ValueError, match="tensor_parallel=8 is not 1 for technique 'none'"):
        korthikanti_layer_bytes(*GPT3, 8, "none")


def test_unknown_technique_is_refused() -> None:
    """A misspelt technique names the rows there are."""
    with pytest.raises(ValueError, match="technique='sp' is not a row of Table 2; try one of none"):
        korthikanti_layer_bytes(*GPT3, 8, "sp")  # type: ignore[arg-type]
