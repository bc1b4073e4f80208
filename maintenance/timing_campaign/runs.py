"""Times the steps of run files, and the host's phases of tiny ones.

usage: python -m maintenance.timing_campaign.runs OUT --part 1|2 [--budget SECONDS] [--host]

Processes start together, import what they need and create a CUDA context. Then they run one after
another, so that each has the card and the CPU alone.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from gpu_mem_calculator.lab.jobs.job import World
from gpu_mem_calculator.lab.measure.card import host_state, import_once
from gpu_mem_calculator.lab.measure.cases_file import MeasureCase
from gpu_mem_calculator.lab.measure.child_process import ChildOutcome, Tell, run_in_child
from gpu_mem_calculator.lab.measure.program import program
from gpu_mem_calculator.lab.measure.worker import measure_case

from .cases import Case, host_bundles, runs

AT_ONCE = 8  # processes that wait for their turn
WAIT = 400.0  # seconds that a process may wait and run
LONGEST = 45  # seconds that a case may run
TIMED, PROBED = 5, 2
HOST_STEPS, WARM = 14, 4
PACKAGES = {
    "deepspeed": ("deepspeed",),
    "megatron_lm": (
        "megatron.core.models.gpt.gpt_model",
        "megatron.core.optimizer",
        "megatron.core.pipeline_parallel",
    ),
}
KEPT = ("allocated_bytes", "step_seconds", "step_seconds_all")
DEVICE = os.environ.get("CAMPAIGN_DEVICE", "cuda")


def prepare(config: Case) -> None:
    """Import what a run file needs, and start CUDA."""
    names = list(PACKAGES.get(config["engine"]["type"], ()))
    training = config.get("training") or {}
    names += ["peft"] if training.get("lora") else []
    names += ["bitsandbytes"] if training.get("quantization") else []
    for name in names:
        try:
            import_module(name)
        except ImportError:
            continue  # the job says so
    if DEVICE == "cuda":
        torch = import_module("torch")
        x = torch.ones(16, 16, device="cuda")
        (x @ x).sum().item()


def steps_of(case: Case, tell: Tell) -> Case:
    """The row of a run whose last steps are timed without probes."""
    measured = MeasureCase(
        id=case["id"],
        config=case["config"],
        group=case["group"],
        rank=case["rank"],
        steps=PROBED,
        timed=TIMED,
        averages=False,
    )
    row = measure_case(measured, lambda _: None)
    figures = {key: row["measured"][key] for key in KEPT if key in row["measured"]}
    order = ("id", "group", "config", "rank")
    environment = {k: v for k, v in row["environment"].items() if k != "steps"}
    head = {key: row[key] for key in order}
    return {**head, "split": case["split"], "measured": figures, "environment": environment}


def host_of(case: Case, tell: Tell) -> Case:
    """The host's seconds of each phase of a tiny model: nothing waits for the GPU between them."""
    marks: list[tuple[str, float]] = []
    job = program(case["config"])
    started_once()
    world = World(
        device=DEVICE,
        mark=lambda name: marks.append((name, time.perf_counter())),
        process_group=job.process_group,
        steps=HOST_STEPS,
    )
    job.start(world)
    phases: dict[str, list[float]] = {}
    for (_, before), (name, end) in pairwise(marks):
        step, _, phase = name.partition(".")
        if step[1:].isdigit() and int(step[1:]) >= WARM:
            phases.setdefault(phase, []).append(end - before)
    found = {name: median(seconds) for name, seconds in phases.items()}
    steps = [end for name, end in marks if name.endswith(marks[-1][0].partition(".")[2])]
    whole = median([b - a for a, b in pairwise(steps[WARM:])])
    low = {f"{name}_low": min(seconds) for name, seconds in phases.items()}
    return {"id": case["id"], "layers": case["layers"], "host": {**found, **low, "step": whole}}


def started_once() -> None:
    """Let jobs of one process share the fake process group of the first."""
    groups: Any = import_module("gpu_mem_calculator.lab.jobs.job")
    if getattr(groups.fake_group, "once", False):
        return
    start, dist = groups.fake_group, import_module("torch.distributed")

    def fake_group(rank: int, ranks: int) -> None:
        if not dist.is_initialized():
            start(rank, ranks)

    fake_group.once = True  # type: ignore[attr-defined]
    groups.fake_group = fake_group
    for name in ("deepspeed", "fsdp", "fsdp1", "megatron"):
        module: Any = import_module(f"gpu_mem_calculator.lab.jobs.{name}")
        module.fake_group = fake_group


def release() -> None:
    """Free what a case left on the card."""
    import gc

    torch = import_module("torch")
    gc.collect()
    if DEVICE == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def _too_long(*_: Any) -> None:
    raise TimeoutError(f"still running after {LONGEST} s")


class Turn:
    """One process: it prepares at once, and runs its cases when `go` is called."""

    def __init__(
        self, cases: Sequence[Case], work: Callable[[Case, Tell], Case], write: Tell
    ) -> None:
        self.cases, self.work, self.write = cases, work, write
        self.gate = os.pipe()
        self.forked, self.ready = threading.Event(), threading.Event()
        self.rows: list[Any] = []
        self.start = time.monotonic()
        self.outcome: ChildOutcome | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()
        self.forked.wait(30)  # packages forbid that two threads fork together

    def _run(self) -> None:
        try:
            self.outcome = run_in_child(self._child, None, WAIT, self._receive)
        finally:
            self.forked.set()
            self.ready.set()

    def _receive(self, message: Any) -> None:
        if message == "forked":
            self.forked.set()
        elif message == "ready":
            self.ready.set()
        else:
            self._add(message)

    def _add(self, row: Case) -> None:
        self.rows.append(row)
        self.write(row)
        print(describe(row, time.monotonic() - self.start), flush=True)
        self.start = time.monotonic()

    def _child(self, _: Any, tell: Tell) -> None:
        tell("forked")
        prepare(self.cases[0]["config"])
        tell("ready")
        os.read(self.gate[0], 1)
        signal.signal(signal.SIGALRM, _too_long)
        for case in self.cases:
            signal.alarm(LONGEST)
            try:
                tell(self.work(case, tell))
            except Exception as error:
                lines = [line for line in str(error).splitlines() if line.strip()] or [""]
                tell({"id": case["id"], "failed": f"{type(error).__name__}: {lines[0][:300]}"})
            release()
        signal.alarm(0)

    def go(self) -> None:
        """Let the process run, and wait for its end; a process that died has a row that says so."""
        self.start = time.monotonic()
        if self.outcome is None:
            os.write(self.gate[1], b"x")
        self.thread.join()
        for end in self.gate:
            os.close(end)
        done = {row["id"] for row in self.rows}
        missing = [case["id"] for case in self.cases if case["id"] not in done]
        why = self.outcome.error if self.outcome else "the process did not start"
        for name in missing:
            self._add({"id": name, "failed": why})


def run_turns(
    lists: Sequence[Sequence[Case]],
    work: Callable[[Case, Tell], Case],
    write: Callable[[Any], None],
    budget: float,
) -> None:
    """Run the lists one after another until the budget is spent."""
    begin = time.monotonic()
    for first in range(0, len(lists), AT_ONCE):
        if time.monotonic() - begin > budget:
            print(f"budget spent; {len(lists) - first} of {len(lists)} not run", flush=True)
            return
        turns = [Turn(cases, work, write) for cases in lists[first : first + AT_ONCE]]
        for turn in turns:
            turn.ready.wait(90)
        for turn in turns:
            turn.go()


def describe(row: Case, seconds: float) -> str:
    """A line of the log."""
    figures = row.get("failed") or row.get("host") or row["measured"].get("step_seconds_all")
    return f"{row['id']:60s} {seconds:5.1f} s  {figures}"


def chosen(case: Case, args: argparse.Namespace) -> bool:
    """Whether the arguments ask for a case."""
    done = Path(args.done).read_text() if args.done else ""
    return (
        any(part in case["id"] for part in args.only.split(","))
        and (not args.groups or case.get("group") in args.groups.split(","))
        and f'"{case["id"]}"' not in done
    )


def main() -> None:
    """Time the runs of a part, or the tiny models of one; OUT gets a JSON line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--part", choices=("1", "2"), required=True)
    parser.add_argument("--budget", type=float, default=300.0)
    parser.add_argument("--host", action="store_true")
    parser.add_argument("--most", type=int, default=10**6)
    parser.add_argument("--only", default="", help="parts of ids, with commas")
    parser.add_argument("--done", default="", help="a file of results whose ids are left out")
    parser.add_argument("--groups", default="", help="groups, with commas")
    parser.add_argument("--together", action="store_true", help="one process for all cases")
    args = parser.parse_args()
    import_once()
    with args.out.open("a") as file:

        def write(row: Any) -> None:
            file.write(json.dumps(row) + "\n")
            file.flush()

        write({"environment": host_state()})
        lists = host_bundles(args.part) if args.host else [[case] for case in runs(args.part)]
        lists = [one for one in lists if chosen(one[0], args)][: args.most]
        lists = [[case for one in lists for case in one]] if args.together else lists
        run_turns(lists, host_of if args.host else steps_of, write, args.budget)


if __name__ == "__main__":
    main()
