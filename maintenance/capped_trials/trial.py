"""One case: its tries under caps, and the bisection of the least one."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from gpu_mem_calculator.lab.jobs.megatron_defaults import with_script_defaults
from gpu_mem_calculator.lab.measure.cases import (
    SURELY_FAILS,
    SURELY_WORKS,
    TRIES,
    CaseResult,
    Worker,
    find_minimum_between,
    measure_one,
)
from gpu_mem_calculator.lab.measure.cases_file import MeasureCase
from gpu_mem_calculator.lab.measure.runs_file import died_of_memory
from gpu_mem_calculator.runfile.read import as_dict

from .caps import caps
from .predict import Prediction

TrialRow = dict[str, Any]
BISECTED = "bisected"  # the name of a bisection's tries
OUT_OF_TIME = "out of time"
LONGEST = 220.0  # seconds of one try
MOST_TRIES = 2 * TRIES  # of a bisection whose ends have to be moved


class TrialStoppedError(Exception):
    """A trial ends early: out of time, or a run failed for another reason than memory."""


class Trial:
    """The tries of one case; `row` has all of them at any time.

    - `before`: the row of an earlier call, whose tries are not repeated
    - `deadline`: of time.monotonic, after which nothing is started
    """

    def __init__(
        self,
        case: MeasureCase,
        found: Prediction,
        worker: Worker,
        *,
        before: Mapping[str, Any] | None = None,
        deadline: float = float("inf"),
    ) -> None:
        self.case = replace(case, averages=False, timeout=LONGEST)
        self.worker, self.deadline = worker, deadline
        config = with_script_defaults(as_dict(case.config))
        head = {"id": case.id, "group": case.group, "config": config, "rank": case.rank}
        self.row: TrialRow = {**head, "prediction": found, "tries": [], **(before or {})}
        known = self.row["tries"]
        self.row["tries"] = [one for one in known if one["survived"] or died_of_memory(one)]
        self.row.pop("stopped", None)

    def run(self, words: Sequence[str], *, bisect: bool = False, on_survival: bool = False) -> None:
        """Try the caps of these words in order, then bisect.

        on_survival: stop after the first cap that is survived.
        """
        found = self.row["prediction"]
        if "error" in found:
            self.row["stopped"] = found["error"]
            return
        try:
            for word, cap in caps(words, found).items():
                one = self._known(word) or self.attempt(word, cap)
                if one["survived"] and on_survival:
                    break
            if bisect:
                self.bisect()
        except TrialStoppedError as error:
            self.row["stopped"] = str(error)

    def _known(self, word: str) -> dict[str, Any] | None:
        return next((one for one in self.row["tries"] if one["name"] == word), None)

    def attempt(self, name: str, cap: int | None) -> dict[str, Any]:
        """Run the case under a cap, and keep the try; raises where it ends without a verdict."""
        if time.monotonic() > self.deadline:
            raise TrialStoppedError(OUT_OF_TIME)
        start = time.monotonic()
        result = measure_one(replace(self.case, cap_bytes=cap), self.worker)
        seconds = round(time.monotonic() - start, 1)
        if result.row is None:
            raise TrialStoppedError("refused: " + "; ".join(result.refused))
        one = {"name": name, **_try(result, cap), "seconds": seconds}
        self.row["tries"].append(one)
        self._keep(result)
        if not one["survived"] and not died_of_memory(one):
            raise TrialStoppedError(one["why"])
        return one

    def _keep(self, result: CaseResult) -> None:
        """Keep the environment, and the figures of the first run that ended."""
        assert result.row is not None
        environment = dict(result.row["environment"])
        environment.pop("cap_bytes", None)
        self.row.setdefault("environment", {}).update(environment)
        if not result.failed and result.case.cap_bytes is None:
            self.row["measured"] = result.row["measured"]
            self.row["phases"] = result.row["phases"]

    def bisect(self) -> None:
        """Look for the least cap between the closest ones tried, else those of the prediction."""
        found, tries = self.row["prediction"], self.row["tries"]
        roomy = int(found["reserved_bytes"] * SURELY_WORKS)
        least = int(found["allocated_bytes"] * SURELY_FAILS)
        high = min(_tried(tries, survived=True), default=max(roomy, least + 1))
        low = max((cap for cap in _tried(tries, survived=False) if cap < high), default=least)
        known = {one["cap_bytes"]: one["survived"] for one in tries}
        left = MOST_TRIES

        def survives(cap: int) -> bool:
            nonlocal left
            if cap in known:
                return bool(known[cap])
            if not left:
                raise TrialStoppedError(f"no least cap after {MOST_TRIES} tries")
            left -= 1
            return bool(self.attempt(BISECTED, cap)["survived"])

        minimum = find_minimum_between(min(low, high - 1), high, survives)
        self.row["survives_in_bytes"] = minimum.survives_in_bytes
        self.row["fails_in_bytes"] = minimum.fails_in_bytes


def _tried(tries: Sequence[Mapping[str, Any]], *, survived: bool) -> list[int]:
    caps_of = (one["cap_bytes"] for one in tries if one["survived"] is survived)
    return [cap for cap in caps_of if cap is not None]


def _try(result: CaseResult, cap: int | None) -> dict[str, Any]:
    """The try of a result; one without a cap has the same keys."""
    assert result.row is not None
    if "tries" in result.row:
        (one,) = result.row["tries"]
        return dict(one)
    if result.failed:
        return {"cap_bytes": cap, "survived": False, "phase": "", "why": result.failed}
    reserved = result.row["measured"].get("reserved_bytes")
    allocated = result.row["measured"]["allocated_bytes"]
    sizes = {"allocated_bytes": allocated, "reserved_bytes": reserved}
    return {"cap_bytes": cap, "survived": True, "retries": 0, **sizes}


def summary(row: Mapping[str, Any]) -> str:
    """One line on a trial: each try, and the least cap."""
    words = [
        f"{one['name']} {'survived' if one['survived'] else 'died in ' + (one['phase'] or '?')}"
        for one in row["tries"]
        if one["name"] != BISECTED
    ]
    if "survives_in_bytes" in row:
        ratio = row["survives_in_bytes"] / row["prediction"]["needs_bytes"]
        words.append(f"least cap {ratio:.4f} of needs")
    if "stopped" in row:
        words.append(row["stopped"][:200])
    seconds = sum(one["seconds"] for one in row["tries"])
    return f"{row['id']:44} {', '.join(words)}  {seconds:.0f} s"
