"""The tables of other tools' names in docs/engines.md name keys and values that a run file has."""

from __future__ import annotations

import re
import typing

import pytest

from gpu_mem_calculator.pytorch.modelling.huggingface.liger import KERNELS
from gpu_mem_calculator.runfile.config import EngineConfig, ModelConfig, TrainingConfig
from gpu_mem_calculator.runfile.keys.keys import rows
from gpu_mem_calculator.runfile.read import key_types, parts
from gpu_mem_calculator.runfile.resolve.recompute_policies import FRAMEWORKS, NAMES
from gpu_mem_calculator.runfile.sections import row_names
from gpu_mem_calculator.training.engines import engine_names
from tests.conftest import ROOT

SECTION = (ROOT / "docs" / "engines.md").read_text("utf-8").partition("## Names in other tools")[2]
ROWS = [
    tuple(cell.strip() for cell in line.strip("|").split(" | "))
    for line in SECTION.splitlines()
    if line.startswith("| ") and not line.startswith("| tool")
]
TOOLS = (
    *("torchtitan", "Megatron-LM", "DeepSpeed", "Accelerate"),
    *("TRL", "Axolotl", "LLaMA-Factory", "torchtune"),
)


def literals(kind: object) -> set[str]:
    """The texts that a type lists."""
    return {str(one) for part in parts(kind) for one in typing.get_args(part)}


KEYS = {*rows(), *(path.rpartition(".")[2] for path in rows())}
VALUES = {
    *row_names(key_types(TrainingConfig)["loss"]),
    *literals(key_types(TrainingConfig)["activation_checkpointing"]),
    *literals(key_types(ModelConfig)["implementation"]),
    *literals(key_types(EngineConfig)["init_device"]),
    *(key for _, keys, _ in FRAMEWORKS for key in keys),
    *NAMES,
    *KERNELS,
    *engine_names(),
    *("true", "false", "1", "2"),
}
SPELLING = {"_", "fsdp_"}  # how a name is to be changed


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]}: {row[2]}")
def test_what_to_write_exists(row: tuple[str, str, str]) -> None:
    """Each word of the last column is a key or a value of a run file."""
    words = [
        word for said in re.findall(r"`([^`]*)`", row[2]) for word in re.split(r"[:,]\s*", said)
    ]
    assert [word for word in words if word not in KEYS | VALUES | SPELLING] == []


def test_every_tool_has_a_row() -> None:
    """And no row has more or fewer cells than its table."""
    assert {len(row) for row in ROWS} == {3}
    said = " ".join(row[0] for row in ROWS)
    assert [tool for tool in TOOLS if tool not in said] == []
