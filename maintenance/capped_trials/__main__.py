"""Run the trials of a file of cases on one GPU.

usage: python -m maintenance.capped_trials CASES OUT [--tries needs,needs+margin] [--bisect 4] ...

OUT gets one JSON line for each case as it ends; a second call goes on where the first one stopped.
A bisected case has a second line, which has all of the first. `python -m
maintenance.capped_trials.report
OUT` sums up.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpu_mem_calculator.lab.measure.cases import Worker
from gpu_mem_calculator.lab.measure.cases_file import MeasureCase
from gpu_mem_calculator.lab.measure.runs_file import RunsFile
from gpu_mem_calculator.ledger.units import GIB
from gpu_mem_calculator.runfile.text.errors import InputError

from .caps import caps, check_words
from .cases import read_trial_cases
from .histories import recording
from .predict import Prediction, predictions
from .prepare import KERNELS, compile_kernels, import_packages, importable, uses_deepspeed
from .schedule import Limits, Schedule, Task
from .trial import OUT_OF_TIME, Trial, TrialRow, summary

LEFT_FREE = 4 * GIB  # of the card
ALL = 10**6
BISECT_SPARE = 1.1  # a bisection may go up to this multiple of the reserved bytes


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the trials; returns 0 where all were run."""
    args = parser().parse_args(arguments)
    try:
        return run(args)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2


def parser() -> argparse.ArgumentParser:
    """The options."""
    found = argparse.ArgumentParser(
        prog="python -m maintenance.capped_trials",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    words = "caps in order: needs, needs+margin, allocated, reserved, card, free (none), factors"
    found.add_argument("cases", help="JSON lines: id, group, config, rank; or id, group, file")
    found.add_argument("out", type=Path, help="the file that gets a line for each case")
    found.add_argument("--tries", default="needs,needs+margin", help=words)
    found.add_argument("--stop-when-survived", action="store_true", help="leave out later caps")
    found.add_argument("--bisect", default="0", help="cases of each group to bisect, or 'all'")
    found.add_argument("--groups", default="", help="only these, with commas")
    found.add_argument("--first", type=int, default=ALL, help="only so many cases")
    found.add_argument("--workers", type=int, default=6, help="processes at a time")
    found.add_argument("--seconds", type=float, default=ALL, help="start nothing after this")
    found.add_argument("--host-gib", type=float, default=90.0, help="host RAM for all processes")
    again = "try cases again that stopped for another reason than memory"
    found.add_argument("--again", action="store_true", help=again)
    found.add_argument(
        "--histories", type=int, default=0, help="record so many runs that died or had no cap"
    )
    found.add_argument("--dry-run", action="store_true", help="print predictions, run nothing")
    return found


def run(args: argparse.Namespace) -> int:
    """Predict, then run what OUT does not have yet."""
    begin = time.monotonic()
    args.deadline = begin + args.seconds
    words = args.tries.split(",")
    check_words(words)
    groups = [name for name in args.groups.split(",") if name]
    cases = read_trial_cases(args.cases, groups)[: args.first]
    file = RunsFile(args.out)
    found = predictions(cases, min(os.cpu_count() or 1, 16))
    if args.dry_run:
        for case in cases:
            print(_predicted(case, found[case.id], words))
        return 0
    before = latest(args.out)
    bisected = to_bisect(cases, ALL if args.bisect == "all" else int(args.bisect))
    limits = card_limits(args)
    worker = choose_worker(args)
    safe = importable(cases)
    print(
        f"{len(cases)} cases, predictions and imports {time.monotonic() - begin:.0f} s", flush=True
    )
    run_trials = Trials(args, file, found, worker, safe)
    tasks = run_trials.tasks(cases, before, bisected)
    left = Schedule(tasks, limits, args.deadline).run()
    seconds = time.monotonic() - begin
    print(
        f"{len(tasks) - len(left)} of {len(tasks)} tasks in {seconds:.0f} s; rows are in {args.out}"
    )
    return 1 if left else 0


class Trials:
    """Makes the tasks of a call: the tries of each case, then the bisections."""

    def __init__(
        self,
        args: argparse.Namespace,
        file: RunsFile,
        found: dict[str, Prediction],
        worker: Worker,
        safe: set[str],
    ) -> None:
        self.args, self.file, self.found = args, file, found
        self.worker, self.safe = worker, safe
        self.words = args.tries.split(",")

    def tasks(
        self, cases: Sequence[MeasureCase], before: dict[str, TrialRow], bisected: set[str]
    ) -> list[Task]:
        """The tasks that OUT lacks: DeepSpeed's kernels first, bisections last."""
        tries = [case for case in cases if not self._done(before.get(case.id))]
        searches = [
            case
            for case in cases
            if case.id in bisected and "survives_in_bytes" not in before.get(case.id, {})
        ]
        kernels = any(map(uses_deepspeed, (*tries, *searches)))
        return [
            *([Task(name=KERNELS, run=compile_kernels)] if kernels else []),
            *(self._task(case, before.get(case.id), bisect=False) for case in tries),
            *(self._task(case, before.get(case.id), bisect=True) for case in searches),
        ]

    def _task(self, case: MeasureCase, before: TrialRow | None, *, bisect: bool) -> Task:
        found = (before or {}).get("prediction") or self.found[case.id]
        after = KERNELS if uses_deepspeed(case) else ""
        return Task(
            name=f"{case.id} bisected" if bisect else case.id,
            run=lambda: self.trial(case, found, bisect=bisect),
            gpu_bytes=gpu_bytes(found, self.words, bisect=bisect),
            host_bytes=int(found.get("host_bytes") or 0),
            after=case.id if bisect and not self._done(before) else after,
        )

    def _done(self, row: TrialRow | None) -> bool:
        return is_done(row, again=self.args.again)

    def trial(self, case: MeasureCase, found: Prediction, *, bisect: bool) -> None:
        """Run one task in this process, and add its row to OUT."""
        import_packages(case, self.safe)
        known = latest(self.args.out).get(case.id)
        one = Trial(case, found, self.worker, before=known, deadline=self.args.deadline)
        one.run(self.words, bisect=bisect, on_survival=self.args.stop_when_survived)
        self.file.add(one.row)
        print(summary(one.row), flush=True)


def latest(path: Path) -> dict[str, TrialRow]:
    """The last row of each case; a line that another process is still writing is left out."""
    whole, _, _ = path.read_bytes().rpartition(b"\n") if path.exists() else (b"", b"", b"")
    rows = [json.loads(line) for line in whole.splitlines()]
    return {row["id"]: row for row in rows}


def is_done(row: TrialRow | None, *, again: bool = False) -> bool:
    """Whether a case needs no more tries: it has its row, and was not stopped by the clock.

    again: nor by anything else.
    """
    if row is None or row.get("stopped") == OUT_OF_TIME:
        return False
    return not (again and "stopped" in row)


def to_bisect(cases: Sequence[MeasureCase], each: int) -> set[str]:
    """The ids of the first cases of each group."""
    seen: Counter[str] = Counter()
    chosen = set()
    for case in cases:
        seen[case.group] += 1
        if seen[case.group] <= each:
            chosen.add(case.id)
    return chosen


def gpu_bytes(found: Prediction, words: Sequence[str], *, bisect: bool) -> int:
    """The most that torch takes in a task."""
    if "error" in found:
        return 0
    roomy = int(found["reserved_bytes"] * BISECT_SPARE)
    if bisect:
        return max(roomy, int(found["needs_bytes"] * BISECT_SPARE))
    return max(
        (roomy if cap is None else cap for cap in caps(words, found).values()), default=roomy
    )


def card_limits(args: argparse.Namespace) -> Limits:
    """What the card and the host have for all processes; CUDA is not started in this one."""
    os.environ.setdefault("OMP_NUM_THREADS", "2")
    from gpu_mem_calculator.lab.measure.card import find_card, import_once

    import_once()
    card = find_card()
    return Limits(
        workers=args.workers,
        gpu_bytes=card.memory_bytes - LEFT_FREE,
        host_bytes=int(args.host_gib * GIB),
    )


def choose_worker(args: argparse.Namespace) -> Worker:
    """What measures a case, with histories where they are wanted."""
    from gpu_mem_calculator.lab.measure.worker import measure_case

    if not args.histories:
        return measure_case
    path = args.out.with_name(args.out.stem + ".histories.jsonl.gz")
    return recording(measure_case, path, args.histories)


def _predicted(case: MeasureCase, found: Prediction, words: Sequence[str]) -> str:
    if "error" in found:
        return f"{case.id:44} {found['error']}"
    sizes: dict[str, Any] = {key: found[f"{key}_bytes"] for key in ("allocated", "reserved")}
    sizes |= caps(words, found)
    text = {key: size and round(size / GIB, 3) for key, size in sizes.items()}
    return f"{case.id:44} {json.dumps(text)}"


if __name__ == "__main__":
    sys.exit(main())
