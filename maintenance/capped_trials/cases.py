"""The cases of a file: whole ones, or the file and id of a measured run."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cache
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from gpu_mem_calculator.lab.backtest.rows import MeasuredRun, read_rows
from gpu_mem_calculator.lab.measure.cases_file import MeasureCase
from gpu_mem_calculator.runfile.text.errors import InputError

GROUND_TRUTH = Path(__file__).parents[2] / "tests" / "ground_truth"


def read_trial_cases(path: str | Path, groups: Iterable[str] = ()) -> list[MeasureCase]:
    """The cases of a JSON Lines file, groups taking turns, so that any part of them has all groups.

    groups: only these; all where it is empty.
    """
    wanted = set(groups)
    cases: dict[str, list[MeasureCase]] = defaultdict(list)
    for line in Path(path).read_text(encoding="utf-8").splitlines():
        case = _case(json.loads(line))
        if not wanted or case.group in wanted:
            cases[case.group].append(case)
    unknown = sorted(wanted - set(cases))
    if unknown or not cases:
        raise InputError(f"{path} has no case of {', '.join(unknown) or 'any group'}")
    turns = chain.from_iterable(zip_longest(*cases.values()))
    return [case for case in turns if case is not None]


def _case(data: Mapping[str, Any]) -> MeasureCase:
    if "file" not in data:
        return MeasureCase(
            id=data["id"], group=data["group"], config=data["config"], rank=data.get("rank", 0)
        )
    run = _measured(data["file"])[data["id"]]
    return MeasureCase(id=run.id, group=data["group"], config=run.config, rank=run.rank)


@cache
def _measured(name: str) -> dict[str, MeasuredRun]:
    return {run.id: run for run in read_rows(GROUND_TRUTH / name)}
