"""How far measured steps are from their estimates: what the factors of the interval come from.

Public rows are split into two halves by a hash of their id, steps that were measured here by what
was decided before they were measured. The first half gives the factors of
`timing/training/step.py`, the second one checks them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256

from msgspec import Struct

from gpu_mem_calculator.lab.backtest.rows import rows_from
from gpu_mem_calculator.lab.backtest.score import backtest
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.timing.training.step import interval_class
from gpu_mem_calculator.tools.read import read

from .rows import FOLDER
from .score import Predicted
from .translate import resolved

WITHIN = 0.9  # of the first half, so that 80 % of a new source lie inside
STEPS = FOLDER / "steps.jsonl"
HERE = "measured on an H200"


class Residual(Struct, frozen=True, kw_only=True):
    """A measured step over its estimate; `first`: it is of the half that factors come from."""

    source: str
    kind: str
    ratio: float
    first: bool


def first_half(row_id: str) -> bool:
    """Whether a row is one of those that the factors were estimated from."""
    return sha256(row_id.encode()).digest()[0] % 2 == 0


def of_rows(found: Iterable[Predicted]) -> Iterator[Residual]:
    """Those of public rows."""
    for one in found:
        made = resolved(one.run)
        yield Residual(
            source=one.run.source,
            kind=interval_class(made.run, made.engine.name),
            ratio=one.run.seconds / one.estimate,
            first=first_half(one.run.row.id),
        )


def of_steps() -> Iterator[Residual]:
    """Those of steps that were measured here."""
    data = [json.loads(line) for line in STEPS.read_text(encoding="utf-8").splitlines()]
    timed = [{**row, "measured": _seconds(row["measured"])} for row in data]
    scored = {row.id: row.metrics["step"] for row in backtest(rows_from(timed)).rows}
    for row in data:
        made, one = resolve(read(row["config"]).file), scored[row["id"]]
        yield Residual(
            source=HERE,
            kind=interval_class(made.run, made.engine.name),
            ratio=one.measured / one.predicted,
            first=row["environment"]["split"] == "seen",
        )


def _seconds(measured: Mapping[str, float]) -> dict[str, float]:
    return {key: value for key, value in measured.items() if key.startswith("step_seconds")}


def factors(found: Iterable[Residual], within: float = WITHIN) -> tuple[float, float]:
    """The shares of the estimate between which `within` of the measured steps lie.

    As much lies below as above, and every source counts the same, whatever its number of rows.
    """
    by_source: dict[str, list[float]] = {}
    for one in found:
        by_source.setdefault(one.source, []).append(one.ratio)
    weighed = sorted((ratio, 1 / len(ratios)) for ratios in by_source.values() for ratio in ratios)
    tail = (1 - within) / 2
    return quantile(weighed, tail), quantile(weighed, 1 - tail)


def quantile(weighed: Sequence[tuple[float, float]], share: float) -> float:
    """The value below which a share of the weight lies."""
    wanted = share * sum(weight for _, weight in weighed)
    passed = 0.0
    for value, weight in weighed:
        passed += weight
        if passed >= wanted:
            return value
    return weighed[-1][0]


def covered(found: Sequence[Residual], bounds: tuple[float, float]) -> float:
    """The share in percent of measured steps that lie between two factors of their estimates."""
    low, high = bounds
    return 100 * sum(low <= one.ratio <= high for one in found) / len(found)
