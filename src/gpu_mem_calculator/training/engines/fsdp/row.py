"""FSDP's row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ....run.cuda.runtimes import NOT_METAL
from ....run.engine_row import SHARD_UNITS, TRANSFORMERS, EngineRow
from ....run.run import DEFAULT_OPTIMIZER, Precision, Run
from .options import OPTIONS, PRECISIONS, as_computed


def title_of(keys: Mapping[str, Any]) -> tuple[str, str]:
    """The version and the sharding strategy; full sharding goes without saying in tables."""
    given = {**OPTIONS, **keys}
    strategy = str(given["sharding_strategy"]).replace("_", " ")
    title = f"FSDP{given['fsdp_version']} {strategy}"
    return title, title.removesuffix(" full shard")


def precision(run: Run) -> Precision:
    """Gathered weights have the bits of the arithmetic."""
    _, compute = PRECISIONS[run.precision]
    return Precision(compute, compute)


ROW = EngineRow(
    title_of=title_of,
    margin=0.015,
    job="pytorch",
    recipe={"training.autocast": None, "training.optimizer": DEFAULT_OPTIMIZER},
    layers=TRANSFORMERS,
    ranks=SHARD_UNITS,
    precision=precision,
    as_computed=as_computed,
    runtimes=NOT_METAL,
    interval="FSDP",
)
