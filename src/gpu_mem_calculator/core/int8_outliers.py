"""Outliers of an int8 base: what is assumed where the run file does not say."""

from __future__ import annotations

from msgspec.structs import replace

from ..run.run import Run
from ..step.outliers import outlier_share
from .models import TrainingConfig


def with_outliers(run: Run, config: TrainingConfig) -> tuple[Run, list[str]]:
    """The run with the share of columns that have outliers, and a sentence where it is assumed."""
    if not run.int8_threshold or config.int8_outliers is not None:
        return run, []
    share = outlier_share(run.arch, run.int8_threshold, int(run.batch) * int(run.seq))
    source = "as newly initialised weights have them; trained weights have fewer"
    return replace(run, int8_outliers=share), [f"training.int8_outliers={share:.2g}, {source}"]
