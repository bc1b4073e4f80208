"""Measures cases one by one, each in a child process; its row is on disk before the next starts.

The least memory that a run survives in is found by bisection of torch's cap, each run in a new
process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ...ledger.units import GIB
from ..jobs.phases import phase_after
from .cases_file import MeasureCase
from .child_process import ChildOutcome, Tell, run_in_child
from .runs_file import NO_MEMORY, Row, RunsFile, failed_try, with_try
from .worker import row_head

TRIES = 9
NEAR = 0.003  # the two ends are this close at the end, as a share of the upper one
# Below its allocated peak a run must fail. A little above what the allocator reserved with free
# memory left, it must survive (torch's segments round up).
SURELY_FAILS, SURELY_WORKS = 0.995, 1.002
STEP = 0.02  # an end that does not hold is moved by this share, then by twice that, and so on
Survives = Callable[[int], bool]


class Minimum(Struct, frozen=True):
    """The run survives in `survives_in_bytes` and fails in `fails_in_bytes`, after `tries` runs."""

    survives_in_bytes: int
    fails_in_bytes: int
    tries: int


def find_minimum(allocated_bytes: int, reserved_bytes: int, survives: Survives) -> Minimum:
    """Bisect between the measured allocated peak of the steps and the reserved peak.

    The start-up peak is not the lower end: DeepSpeed flattens on the CPU when the GPU is too small.
    """
    low, high = int(allocated_bytes * SURELY_FAILS), int(reserved_bytes * SURELY_WORKS)
    return bisect(low, high, survives)


def bisect(low: int, high: int, survives: Survives) -> Minimum:
    """Bisect between a cap that fails and one that survives."""
    tries = 0
    while tries < TRIES and high - low > NEAR * high:
        middle = (low + high) // 2
        low, high = (low, middle) if survives(middle) else (middle, high)
        tries += 1
    return Minimum(high, low, tries)


def find_minimum_between(low: int, high: int, survives: Survives) -> Minimum:
    """Bisect between two caps that are only predicted: each end is tried, and moved until it holds.

    `survives` raises where a cap is more than the card has.
    """
    failed, step, tries = 0, STEP, 1
    while not survives(high):
        failed, high, step, tries = high, int(high * (1 + step)), 2 * step, tries + 1
    low, step = max(low, failed), STEP
    while True:
        found = bisect(low, high, survives)
        tries += found.tries
        if failed or found.fails_in_bytes > low:
            return Minimum(found.survives_in_bytes, found.fails_in_bytes, tries)
        tries += 1
        if not survives(low):
            return Minimum(found.survives_in_bytes, low, tries)
        low, high, step = int(low * (1 - min(step, 0.5))), low, 2 * step


Worker = Callable[[MeasureCase, Tell], Row]
# In the errors of torch, CUDA and NCCL; of cuBLAS and cuDNN.
OUT_OF_MEMORY = ("out of memory", "ALLOC_FAILED")
OnPhase = Callable[[MeasureCase, str], None]


class CaseResult(Struct, kw_only=True):
    """The result of one case.

    - `row`: the row of a run that ended or failed; None where the case was refused
    - `refused`: why, a sentence each
    - `seconds`: how long it took
    - `log`: the end of what the child printed, or a remark
    """

    case: MeasureCase
    row: Row | None = None
    refused: tuple[str, ...] = ()
    seconds: float = 0.0
    log: str = ""

    @property
    def failed(self) -> str:
        """Why the run failed; empty where it did not."""
        return str((self.row or {}).get("failed", ""))


class CaseStoppedError(Exception):
    """A run of the bisection failed for another reason than memory."""


def no_report(case: MeasureCase, phase: str) -> None:
    """Do nothing at the end of a phase."""


def measure_cases(
    cases: Iterable[MeasureCase],
    worker: Worker,
    *,
    file: RunsFile | None = None,
    minimum: bool = False,
    on_phase: OnPhase = no_report,
) -> Iterator[CaseResult]:
    """Measure each case; its row is in the file before the next one starts.

    A case that runs out of memory, dies or exceeds its timeout has a row, too, with `failed` and
    without `measured.allocated_bytes`. A case that is refused has none. `on_phase` is called at the
    end of each phase; `minimum` also looks for the least memory, between the bounds of a case that
    has them.
    """
    for case in cases:
        start = time.monotonic()
        if minimum and case.bounds_bytes is not None:
            result = _minimum_between(case, worker, on_phase)
        else:
            result = measure_one(case, worker, on_phase)
            if minimum and result.row and not result.failed and case.cap_bytes is None:
                _add_minimum(result, worker, on_phase)
        result.seconds = time.monotonic() - start
        if file is not None and result.row is not None:
            file.add(result.row)
        yield result


def measure_one(case: MeasureCase, worker: Worker, on_phase: OnPhase = no_report) -> CaseResult:
    """Measure one case in a child process."""
    messages: list[dict[str, Any]] = []

    def receive(message: dict[str, Any]) -> None:
        messages.append(message)
        if "phase" in message:
            on_phase(case, message["phase"])

    outcome = run_in_child(worker, case, case.timeout, receive)
    if not outcome.error:
        return CaseResult(case=case, row=with_try(outcome.value, case.cap_bytes))
    if outcome.problems:
        return CaseResult(case=case, refused=outcome.problems)
    if "ModuleNotFoundError" in outcome.kinds:
        why = f"the job cannot start here: {outcome.error}"
        return CaseResult(case=case, refused=(why,), log=outcome.log)
    return CaseResult(case=case, row=failed_row(case, outcome, messages), log=outcome.log)


def failed_row(case: MeasureCase, outcome: ChildOutcome, messages: list[dict[str, Any]]) -> Row:
    """The row of a case that failed: why, and the phases that ended before."""
    head = next((m for m in messages if "environment" in m), {})
    ended = [dict(message) for message in messages if "phase" in message]
    phases = {message.pop("phase"): message for message in ended}
    phase = phase_after(list(phases), head.get("phases", ()))
    after = f"after {next(reversed(phases))}" if phases else "before its first phase ended"
    where = f"in {phase}" if phase else after
    measured = {k: head[k] for k in ("context_bytes",) if k in head}
    if out_of_memory(outcome):
        why = f"{NO_MEMORY} {where}: {outcome.error}"
        if case.cap_bytes is not None:
            measured["fails_in_bytes"] = case.cap_bytes
    else:
        why = f"{outcome.error} ({where})"
    row = {
        **row_head(case, head.get("group", "failed")),
        "failed": why,
        "measured": measured,
        "phases": phases,
        "environment": head.get("environment", {}),
    }
    if case.cap_bytes is not None:
        died: list[dict[str, int]] = [m["died"] for m in messages if "died" in m]
        counters = died[0] if died else {}
        row["tries"] = [failed_try(case.cap_bytes, phase, counters, why)]
    return row


def out_of_memory(outcome: ChildOutcome) -> bool:
    """Whether a child failed for lack of GPU memory."""
    return "OutOfMemoryError" in outcome.kinds or any(w in outcome.error for w in OUT_OF_MEMORY)


def _add_minimum(result: CaseResult, worker: Worker, on_phase: OnPhase) -> None:
    """Bisect the cap below a run without one, and add both ends and every try to the row."""
    assert result.row is not None
    measured = result.row["measured"]
    if "reserved_bytes" not in measured:
        result.log = "the least memory was not looked for: the run fills this card"
        return
    caps = CapTries(result.case, worker, on_phase)
    peaks = measured["allocated_bytes"], measured["reserved_bytes"]
    _add_ends(result, caps, lambda: find_minimum(*peaks, caps.survives))


def _minimum_between(case: MeasureCase, worker: Worker, on_phase: OnPhase) -> CaseResult:
    """Look for the least memory between the case's bounds; the row is that of its first survivor.

    Where no cap is survived, it is that of the last try.
    """
    assert case.bounds_bytes is not None
    low, high = case.bounds_bytes
    caps = CapTries(case, worker, on_phase)
    result = CaseResult(case=case)
    _add_ends(result, caps, lambda: find_minimum_between(low, high, caps.survives))
    return result


class CapTries:
    """Runs a case under one cap after another; `survives` is what a bisection asks."""

    def __init__(self, case: MeasureCase, worker: Worker, on_phase: OnPhase = no_report) -> None:
        self.case, self.worker, self.on_phase = case, worker, on_phase
        self.results: list[CaseResult] = []

    def survives(self, cap_bytes: int) -> bool:
        """Whether the case survives under a cap; raises where it fails for another reason."""
        self.on_phase(self.case, f"in {cap_bytes / GIB:.2f} GiB")
        case = replace(self.case, cap_bytes=cap_bytes, snapshot=None, averages=False)
        result = measure_one(case, self.worker)
        self.results.append(result)
        if not result.failed and not result.refused:
            return True
        if result.failed.startswith(NO_MEMORY):
            return False
        raise CaseStoppedError("; ".join(result.refused) or result.failed)

    @property
    def tries(self) -> list[dict[str, Any]]:
        """Every try so far, in order."""
        return [one for result in self.results if result.row for one in result.row["tries"]]

    @property
    def base(self) -> CaseResult:
        """The first result that survived, else the last one."""
        survived = [result for result in self.results if result.row and not result.failed]
        return survived[0] if survived else self.results[-1]


def _add_ends(result: CaseResult, caps: CapTries, search: Callable[[], Minimum]) -> None:
    """Add both ends of a search and its tries to the row; where it stops, `log` says why."""
    try:
        minimum = search()
    except CaseStoppedError as error:
        minimum, result.log = None, f"the least memory was not found: {error}"
    if result.row is None:
        result.row, result.refused = caps.base.row, caps.base.refused
    if result.row is None:
        return
    result.row["tries"] = caps.tries
    if minimum is not None:
        result.row["measured"]["survives_in_bytes"] = minimum.survives_in_bytes
        result.row["measured"]["fails_in_bytes"] = minimum.fails_in_bytes
