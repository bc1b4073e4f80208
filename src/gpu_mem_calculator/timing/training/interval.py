"""How far a measured step may be from its estimate: the factors of `low` and `high`.

80 % of measured steps lie between low and high. A factor belongs to a class of runs; the table says
which measured rows it was estimated from (docs/timing.md).
"""

from __future__ import annotations

from ...model.blocks import Moe
from ...run.run import Run

# class -> (low, high) as factors of the estimate
FACTORS: dict[str, tuple[float, float]] = {
    "one GPU": (0.85, 1.2),
    "one node": (0.85, 1.2),
    "several nodes": (0.8, 1.25),
    "experts": (0.7, 1.45),
}


def interval_class(run: Run) -> str:
    """The class of a run; choices alone decide, never sizes that may be arrays."""
    if any(isinstance(layer.mlp, Moe) for layer, _, _ in run.arch.runs):
        return "experts"
    if run.num_nodes > 1:
        return "several nodes"
    return "one node" if run.gpus_per_node > 1 else "one GPU"


def interval_factors(run: Run) -> tuple[float, float]:
    """(low, high) as factors of the estimated seconds of a step."""
    return FACTORS[interval_class(run)]
