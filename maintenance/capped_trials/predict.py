"""The prediction of a case, made before it is run."""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from gpu_mem_calculator.estimates.margin import margin_bytes, margin_of
from gpu_mem_calculator.lab.backtest.predict import by_estimate
from gpu_mem_calculator.lab.backtest.rows import MeasuredRun
from gpu_mem_calculator.lab.measure.cases_file import MeasureCase
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.tools.read import read

Prediction = dict[str, Any]


def predict(case: MeasureCase) -> Prediction:
    """The bytes that the measured rank needs, allocates and reserves; `error` where it fails."""
    run = MeasuredRun(
        id=case.id,
        group=case.group,
        config=dict(case.config),
        measured={"survives_in_bytes": 0},  # which asks for `needs`
        rank=case.rank,
        process_group="fake",
    )
    try:
        found = by_estimate(run)
        return {
            "needs_bytes": found.needs,
            "margin_bytes": _margin(case, found),
            "allocated_bytes": found.allocated,
            "startup_bytes": found.startup,
            "reserved_bytes": found.reserved,
            "host_bytes": found.host or 0,
            "card_bytes": _card(case),
        }
    except Exception as error:  # a case without a prediction is a result, too
        return {"error": f"{type(error).__name__}: {error}"}


def _margin(case: MeasureCase, found: Any) -> int:
    """The margin of the measured rank."""
    resolved = resolve(read(dict(case.config)).file)
    kind = margin_of(resolved.run, resolved.engine.name)
    return margin_bytes(kind, found.needs, found.reserved)


def _card(case: MeasureCase) -> int:
    """What torch may have on the card that the run file names."""
    resolved = resolve(read(dict(case.config)).file)
    return resolved.hardware.memory_bytes - sum(size for _, size, _ in resolved.outside_torch)


def predictions(cases: Sequence[MeasureCase], processes: int) -> dict[str, Prediction]:
    """The prediction of every case by its id, several at a time."""
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        return dict(zip([case.id for case in cases], pool.map(predict, cases), strict=True))
