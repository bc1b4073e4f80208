"""How far a measured step may be from its estimate: the factors of `low` and `high`.

80 % of measured steps should lie between low and high. The factors come from measured steps over
their estimates (docs/timing.md): at least the range of the middle 90 % of one half of the rows,
with the same weight for every source, because an unseen run is of a new source. One step of experts
on layers of Megatron's own, three times its estimate, is left out.
"""

from __future__ import annotations

from ...models.arch.blocks import Moe
from ...run.run import Run
from ...training.engines import engine_row

EXPERTS, ADAPTERS = "experts", "adapters"
# class -> (low, high) as factors of the estimate. Megatron-LM: run files often leave out which
# collectives overlap; without these keys the estimate is up to 16 % too long.
FACTORS: dict[str, tuple[float, float]] = {
    "PyTorch": (0.87, 1.3),
    "FSDP": (0.93, 1.55),
    "DeepSpeed": (0.9, 1.5),
    "Megatron-LM": (0.84, 1.3),
    "Megatron-DeepSpeed": (0.88, 1.25),
    ADAPTERS: (0.7, 1.55),
    EXPERTS: (0.88, 1.8),
}


def interval_class(run: Run, engine: str) -> str:
    """The class of a run: what it trains, then its engine."""
    if any(isinstance(layer.mlp, Moe) for layer, _, _ in run.arch.runs):
        return EXPERTS
    return ADAPTERS if run.frozen else engine_row(engine).interval


def interval_factors(run: Run, engine: str) -> tuple[float, float]:
    """(low, high) as factors of the estimated seconds of a step."""
    return FACTORS[interval_class(run, engine)]
