"""Many cases, one after the other, each in a process of its own and on disk when it is done."""

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
OUT_OF_MEMORY = ("out of memory", "ALLOC_FAILED")  # torch, CUDA and NCCL; cuBLAS and cuDNN


class CaseResult(Struct, kw_only=True):
    """What came of one case: a row to keep, or the sentences that refuse it."""

    case: MeasureCase
    row: Row | None = None
    refused: tuple[str, ...] = ()
    seconds: float = 0.0
    log: str = ""

    @property
    def failed(self) -> str:
        """Why it did not come to its end; nothing where it did."""
        return str((self.row or {}).get("failed", ""))


class CaseStoppedError(Exception):
    """A try of the bisection ended in another way than by running out of memory."""


def measure_cases(
    cases: Iterable[MeasureCase],
    worker: Worker,
    *,
    file: RunsFile | None = None,
    minimum: bool = False,
    heard: Callable[[MeasureCase, str], None] = lambda case, phase: None,
) -> Iterator[CaseResult]:
    """Measure each case; its row is in the file before the next one starts.

    A case that runs out of memory, dies or does not end in time has a row too, with `failed` and
    without `measured.allocated_bytes`. A case that is refused has none.
    """
    for case in cases:
        start = time.monotonic()
        result = measure_one(case, worker, heard)
        if minimum and result.row and not result.failed and case.cap_bytes is None:
            _add_minimum(result, worker, heard)
        result.seconds = time.monotonic() - start
        if file is not None and result.row is not None:
            file.add(result.row)
        yield result


def measure_one(
    case: MeasureCase,
    worker: Worker,
    heard: Callable[[MeasureCase, str], None] = lambda case, phase: None,
) -> CaseResult:
    """Measure one case in a child of this process."""
    told: list[dict[str, Any]] = []

    def hear(message: dict[str, Any]) -> None:
        told.append(message)
        if "phase" in message:
            heard(case, message["phase"])

    outcome = run_in_child(worker, case, case.timeout, hear)
    if not outcome.error:
        return CaseResult(case=case, row=outcome.value)
    if outcome.problems:
        return CaseResult(case=case, refused=outcome.problems)
    if "ModuleNotFoundError" in outcome.kinds:
        return CaseResult(case=case, refused=(f"the job cannot start here: {outcome.error}",),
                      log=outcome.log)  # fmt: skip
    return CaseResult(case=case, row=failed_row(case, outcome, told), log=outcome.log)


def failed_row(case: MeasureCase, outcome: ChildOutcome, told: list[dict[str, Any]]) -> Row:
    """The row of a case that did not come to its end: why, and how far it came."""
    head = next((m for m in told if "environment" in m), {})
    phases = {m["phase"]: {k: v for k, v in m.items() if k != "phase"}
              for m in told if "phase" in m}  # fmt: skip
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
    """Whether a child ended because the card was full."""
    return "OutOfMemoryError" in outcome.kinds or any(w in outcome.error for w in OUT_OF_MEMORY)


def _add_minimum(
    result: CaseResult, worker: Worker, heard: Callable[[MeasureCase, str], None]
) -> None:
    """Bisect the cap and add the two ends to the row; say why where a try ended otherwise."""
    assert result.row is not None
    measured = result.row["measured"]
    if "reserved_bytes" not in measured:
        result.log = "the least memory was not looked for: the run fills this card"
        return

    def survives(cap_bytes: int) -> bool:
        heard(result.case, f"in {cap_bytes / GIB:.2f} GiB")
        tried = measure_one(replace(result.case, cap_bytes=cap_bytes, snapshot=None), worker)
        if not tried.failed and not tried.refused:
            return True
        if tried.failed.startswith("out of memory"):
            return False
        raise CaseStoppedError("; ".join(tried.refused) or tried.failed)

    try:
        found = find_minimum(measured["allocated_bytes"], measured["reserved_bytes"], survives)
    except CaseStoppedError as error:
        result.log = f"the least memory was not found: {error}"
        return
    measured["survives_in_bytes"] = found.survives_in_bytes
    measured["fails_in_bytes"] = found.fails_in_bytes
