"""Measures cases one by one, each in a child process; its row is on disk before the next starts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ..ledger.units import GIB
from .cases_file import MeasureCase
from .child_process import ChildOutcome, Tell, run_in_child
from .minimum import find_minimum
from .runs_file import Row, RunsFile
from .worker import row_head

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
    end of each phase; `minimum` also looks for the least memory.
    """
    for case in cases:
        start = time.monotonic()
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
        return CaseResult(case=case, row=outcome.value)
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
    where = f"after {next(reversed(phases))}" if phases else "before its first phase ended"
    measured = {k: head[k] for k in ("context_bytes",) if k in head}
    if out_of_memory(outcome):
        why = f"out of memory {where}: {outcome.error}"
        if case.cap_bytes is not None:
            measured["fails_in_bytes"] = case.cap_bytes
    else:
        why = f"{outcome.error} ({where})"
    return {
        **row_head(case, head.get("group", "failed")),
        "failed": why,
        "measured": measured,
        "phases": phases,
        "environment": head.get("environment", {}),
    }


def out_of_memory(outcome: ChildOutcome) -> bool:
    """Whether a child failed for lack of GPU memory."""
    return "OutOfMemoryError" in outcome.kinds or any(w in outcome.error for w in OUT_OF_MEMORY)


def _add_minimum(result: CaseResult, worker: Worker, on_phase: OnPhase) -> None:
    """Bisect the cap and add both ends to the row; where a run fails otherwise, `log` says why."""
    assert result.row is not None
    measured = result.row["measured"]
    if "reserved_bytes" not in measured:
        result.log = "the least memory was not looked for: the run fills this card"
        return

    def survives(cap_bytes: int) -> bool:
        on_phase(result.case, f"in {cap_bytes / GIB:.2f} GiB")
        attempt = measure_one(replace(result.case, cap_bytes=cap_bytes, snapshot=None), worker)
        if not attempt.failed and not attempt.refused:
            return True
        if attempt.failed.startswith("out of memory"):
            return False
        raise CaseStoppedError("; ".join(attempt.refused) or attempt.failed)

    try:
        minimum = find_minimum(measured["allocated_bytes"], measured["reserved_bytes"], survives)
    except CaseStoppedError as error:
        result.log = f"the least memory was not found: {error}"
        return
    measured["survives_in_bytes"] = minimum.survives_in_bytes
    measured["fails_in_bytes"] = minimum.fails_in_bytes
