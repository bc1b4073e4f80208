"""Outliers of an int8 base: what is assumed where the run file does not say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from ...run.run import Run
from ...training.step.outliers import SPREAD, outlier_share
from ..config import TrainingConfig


def with_outliers(
    run: Run, training: TrainingConfig, config: Mapping[str, Any] | None
) -> tuple[Run, list[str]]:
    """The run with the share of columns that have outliers, and a sentence where it is assumed;
    `config`: the model's config.json, where there is one.
    """
    if not run.int8_threshold or training.int8_outliers is not None:
        return run, []
    tokens, spread = int(run.batch) * int(run.seq), _initializer_range(config or {})
    share = outlier_share(run.arch, run.int8_threshold, tokens, spread)
    source = "as newly initialised weights have them; trained weights have fewer"
    return replace(run, int8_outliers=share), [f"training.int8_outliers={share:.2g}, {source}"]


def _initializer_range(config: Mapping[str, Any]) -> float:
    """The standard deviation of newly initialised weights."""
    text = config.get("text_config")
    inside = text if isinstance(text, Mapping) else {}
    found = config.get("initializer_range", inside.get("initializer_range", SPREAD))
    return float(found) if isinstance(found, int | float) else SPREAD
