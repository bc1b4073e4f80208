"""Trials under a cap without a GPU: runs that need a known amount, and a made-up card."""

from __future__ import annotations

import gzip
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_mem_calculator.lab.measure import card, worker
from gpu_mem_calculator.lab.measure.cases_file import MeasureCase
from gpu_mem_calculator.lab.measure.child_process import Tell
from gpu_mem_calculator.lab.measure.runs_file import Row
from gpu_mem_calculator.lab.measure.worker import row_head
from gpu_mem_calculator.runfile.text.errors import InputError
from maintenance.capped_trials import __main__ as command
from maintenance.capped_trials import prepare
from maintenance.capped_trials.caps import caps, check_words
from maintenance.capped_trials.cases import read_trial_cases
from maintenance.capped_trials.histories import read_ids, recording
from maintenance.capped_trials.predict import predict
from maintenance.capped_trials.report import read, report, waste_pct
from maintenance.capped_trials.schedule import OUTSIDE, Limits, Schedule, Task
from maintenance.capped_trials.trial import Trial
from tests.conftest import small_run
from tests.corpus import sampled

GIB = 2**30
NEEDS = 11 * GIB
FOUND = {
    "needs_bytes": 10 * GIB,
    "margin_bytes": 2 * GIB,
    "allocated_bytes": 9 * GIB,
    "startup_bytes": GIB,
    "reserved_bytes": 13 * GIB,
    "host_bytes": 0,
}


class OutOfMemoryError(RuntimeError):
    """As torch's."""


def job(case: MeasureCase, tell: Tell) -> Row:
    """A run that survives in `NEEDS`; what its id says goes wrong."""
    around = {"gpu": "Fake GPU", "process_group": "fake"}
    tell({"environment": around, "group": "fsdp", "phases": ("model", "s0.a0.fwd")})
    phases = {"model": {"start_next_bytes": 1, "peak_bytes": 9 * GIB, "reserved_bytes": 9 * GIB}}
    tell({"phase": "model", **phases["model"]})
    if "broken" in case.id:
        raise AttributeError("no such thing")
    if "refused" in case.id:
        raise InputError(["not this one"])
    if case.cap_bytes is not None and case.cap_bytes < NEEDS:
        tell({"died": {"retries": 2, "allocated_bytes": 1, "reserved_bytes": 2, "free_bytes": 9}})
        raise OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
    measured = {"allocated_bytes": 9 * GIB, "reserved_bytes": 13 * GIB}
    return {**row_head(case, ""), "phases": phases, "environment": around, "measured": measured}


def case(name: str = "run", group: str = "fsdp") -> MeasureCase:
    """A case of a small run."""
    return MeasureCase(id=name, group=group, config=small_run("fsdp"))


def tried(words: str, name: str = "run", **settings: Any) -> dict[str, Any]:
    """The row of a trial."""
    one = Trial(case(name), FOUND, job)
    one.run(words.split(","), **settings)
    return one.row


def outcomes(row: dict[str, Any]) -> list[tuple[str, bool]]:
    """Every try's name, and whether it survived."""
    return [(one["name"], one["survived"]) for one in row["tries"]]


def test_a_word_is_a_figure_of_the_prediction_or_a_factor_of_needs() -> None:
    """A figure that the prediction lacks is left out, and what is neither is refused."""
    found = caps(["needs", "needs+margin", "1.5", "free", "reserved"], FOUND)
    sizes = [found[name] for name in ("needs", "needs+margin", "1.5", "free", "reserved")]
    assert sizes == [10 * GIB, 12 * GIB, 15 * GIB, None, 13 * GIB]
    assert caps(["needs", "needs+margin"], {**FOUND, "margin_bytes": None}) == {"needs": 10 * GIB}
    with pytest.raises(InputError, match="--tries nedes: use needs"):
        check_words(["needs", "nedes"])


def test_a_row_keeps_the_prediction_and_every_try() -> None:
    """Also where a run died, and torch's counters then."""
    row = tried("needs,needs+margin,free")
    assert outcomes(row) == [("needs", False), ("needs+margin", True), ("free", True)]
    assert row["prediction"] == FOUND
    assert row["environment"]["gpu"] == "Fake GPU"
    died = row["tries"][0]
    assert (died["phase"], died["retries"], died["cap_bytes"]) == ("s0.a0.fwd", 2, 10 * GIB)
    assert row["measured"]["allocated_bytes"] == 9 * GIB


def test_later_caps_may_be_left_out() -> None:
    """After the first that is survived."""
    assert outcomes(tried("needs+margin,free", on_survival=True)) == [("needs+margin", True)]


@pytest.mark.parametrize(
    "words", sampled(["needs,needs+margin", "needs", "needs+margin", "free"], keep=2)
)
def test_the_least_cap_is_bisected_from_what_was_tried(words: str) -> None:
    """Both ends were tried, and are 0.3 % apart."""
    row = tried(words, bisect=True)
    low, high = row["fails_in_bytes"], row["survives_in_bytes"]
    assert low < NEEDS <= high
    assert high - low <= 0.006 * high
    known = {one["cap_bytes"]: one["survived"] for one in row["tries"]}
    assert (known[low], known[high]) == (False, True)
    assert len(known) == len(row["tries"])  # no cap twice


@pytest.mark.parametrize(
    ("name", "why"), [("broken", "AttributeError: no such thing"), ("refused", "not this one")]
)
def test_a_run_that_fails_otherwise_stops_its_trial(name: str, why: str) -> None:
    """No later cap, no bisection, and the reason in the row."""
    row = tried("needs,needs+margin", name, bisect=True)
    assert why in row["stopped"]
    assert len(row["tries"]) <= 1
    assert "survives_in_bytes" not in row


def test_after_the_deadline_nothing_is_started() -> None:
    """The row says so, and a later call goes on with it."""
    late = Trial(case(), FOUND, job, deadline=time.monotonic() - 1)
    late.run(["needs"])
    assert (late.row["stopped"], late.row["tries"]) == ("out of time", [])
    assert not command.is_done(late.row)
    again = Trial(case(), FOUND, job, before=late.row)
    again.run(["needs"])
    assert outcomes(again.row) == [("needs", False)]
    assert command.is_done(again.row)


def test_a_case_that_broke_is_tried_again_where_asked() -> None:
    """Its try without a verdict is dropped, and the others are kept."""
    row = {**tried("needs", "broken"), "id": "run"}
    assert command.is_done(row)
    assert not command.is_done(row, again=True)
    again = Trial(case(), FOUND, job, before=row)
    again.run(["needs"])
    assert outcomes(again.row) == [("needs", False)]
    assert "stopped" not in again.row


def run_tasks(
    folder: Path, sizes: list[int], *, workers: int = 4, after: dict[int, str] | None = None
) -> list[tuple[int, float, float]]:
    """Begin and end of tasks of these sizes on a card of 100 GiB, by their numbers."""
    folder.mkdir()

    def sleep(number: int) -> Callable[[], None]:
        def run() -> None:
            begin = time.monotonic()
            time.sleep(0.3)
            (folder / str(number)).write_text(f"{begin} {time.monotonic()}")

        return run

    tasks = [
        Task(name=str(n), run=sleep(n), gpu_bytes=size * GIB, after=(after or {}).get(n, ""))
        for n, size in enumerate(sizes)
    ]
    limits = Limits(workers=workers, gpu_bytes=100 * GIB, host_bytes=GIB)
    assert Schedule(tasks, limits, time.monotonic() + 60).run() == []
    found = []
    for path in sorted(folder.iterdir()):
        begin, end = path.read_text().split()
        found.append((int(path.name), float(begin), float(end)))
    return found


def most_at_once(found: list[tuple[int, float, float]], weights: list[int]) -> int:
    """The most of these weights at any time."""
    return max(sum(weights[n] for n, b, e in found if b <= at < e) for _, at, _ in found)


def test_tasks_share_the_card_as_far_as_it_goes(tmp_path: Path) -> None:
    """Never more than its memory, with what each process takes outside torch, nor more workers."""
    sizes = [40, 60, 30, 30, 20]
    found = run_tasks(tmp_path / "a", sizes)
    assert len(found) == len(sizes)
    assert 30 < most_at_once(found, [size + OUTSIDE // GIB for size in sizes]) <= 100
    assert most_at_once(run_tasks(tmp_path / "b", [1] * 5, workers=2), [1] * 5) == 2


def test_a_task_waits_for_another(tmp_path: Path) -> None:
    """The second of two starts after the first ended."""
    (_, _, first_end), (_, second_begin, _) = run_tasks(tmp_path / "a", [1, 1], after={1: "0"})
    assert second_begin >= first_end


def test_what_is_not_started_in_time_is_left() -> None:
    """And nothing runs."""
    task = Task(name="late", run=lambda: None)
    limits = Limits(workers=1, gpu_bytes=1, host_bytes=1)
    assert Schedule([task], limits, time.monotonic() - 1).run() == [task]


def test_groups_take_turns(tmp_path: Path) -> None:
    """A call that runs out of time has tried every group; a measured run is named by its file."""
    path = tmp_path / "cases.jsonl"
    rows = [{"id": f"{g}{n}", "group": g, "config": small_run()} for g in "ab" for n in range(2)]
    rows.append({"id": "fam-gpt2", "group": "single", "file": "runs.jsonl"})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    cases = read_trial_cases(path)
    assert [one.id for one in cases] == ["a0", "b0", "fam-gpt2", "a1", "b1"]
    assert cases[2].config["model"]["config"]["model_type"] == "gpt2"
    assert [one.id for one in read_trial_cases(path, ["b"])] == ["b0", "b1"]
    with pytest.raises(InputError, match="has no case of c"):
        read_trial_cases(path, ["c"])


def test_a_case_is_predicted_for_its_rank() -> None:
    """Every figure is there, or the sentence with which the calculator refuses the case."""
    found = predict(case())
    assert found["allocated_bytes"] <= found["needs_bytes"] <= found["reserved_bytes"]
    assert "error" in predict(MeasureCase(id="x", config={"model": {"name": "no-such-model"}}))


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A card of 100 GiB on which jobs need what `job` says."""
    made_up = card.DriverCard(name="Fake", memory_bytes=100 * GIB)
    monkeypatch.setattr(card, "find_card", lambda: made_up)
    monkeypatch.setattr(card, "import_once", lambda: None)
    monkeypatch.setattr(worker, "measure_case", job)
    monkeypatch.setattr(command, "predictions", lambda cases, _: {c.id: FOUND for c in cases})
    monkeypatch.setattr(command, "importable", lambda cases: set())
    monkeypatch.setattr(command, "compile_kernels", lambda: None)


@pytest.mark.usefixtures("gpu")
def test_the_command_writes_a_line_for_each_case_and_goes_on(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A second call repeats no try, and bisects where the first did not."""
    cases, out = tmp_path / "cases.jsonl", tmp_path / "out.jsonl"
    groups = ("deepspeed", "fsdp", "fsdp")
    rows = [
        {"id": f"run{n}", "group": g, "config": small_run("fsdp")} for n, g in enumerate(groups)
    ]
    cases.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = [str(cases), str(out), "--workers", "2"]
    assert command.main(words) == 0
    assert sorted(row["id"] for row in read([out])) == ["run0", "run1", "run2"]
    assert command.main(words) == 0
    assert len(out.read_text().splitlines()) == 3
    assert command.main([*words, "--bisect", "1"]) == 0
    bisected = {row["id"]: row for row in read([out]) if "survives_in_bytes" in row}
    assert set(bisected) == {"run0", "run1"}
    assert outcomes(bisected["run0"])[:2] == [("needs", False), ("needs+margin", True)]
    assert "run2" in capfd.readouterr().out
    text = "\n".join(report(read([out])))
    assert "fsdp                     2          0 of 2          2 of 2" in text
    assert "run0" in text
    assert "in s0.a0.fwd, 2 retries, survives in +10." in text
    assert waste_pct(bisected["run0"], "needs+margin") == pytest.approx(9.1, abs=0.3)


@pytest.mark.usefixtures("gpu")
def test_a_dry_run_prints_predictions_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is written."""
    cases, out = tmp_path / "cases.jsonl", tmp_path / "out.jsonl"
    cases.write_text(json.dumps({"id": "a", "group": "fsdp", "config": small_run("fsdp")}) + "\n")
    assert command.main([str(cases), str(out), "--dry-run", "--tries", "needs,1.1"]) == 0
    assert '"needs": 10.0, "1.1": 11.0' in capsys.readouterr().out
    assert not out.exists() or not out.read_text()


def test_packages_are_imported_ahead_where_a_fork_can_use_the_gpu_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One after whose import CUDA fails in a fork is left to each run."""
    monkeypatch.setattr(prepare, "PACKAGES", {"fsdp": ("json", "gzip", "no_such_package")})
    monkeypatch.setattr(prepare, "_use_gpu", lambda _, tell: None)
    assert prepare.importable([case()]) == {"json", "gzip"}
    assert prepare.importable([case(group="single")]) == set()
    monkeypatch.setattr(prepare, "_use_gpu", lambda _, tell: os._exit(1))
    assert prepare.importable([case()]) == set()


def test_the_history_of_a_run_that_died_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Events, marks and phases, of one try of each case, up to a number of cases."""
    made = {"action": "alloc", "addr": 4096, "size": 512, "stream": 0, "time_us": 7}
    events = [made, {**made, "action": "free_requested"}, {**made, "action": "oom"}]
    memory = SimpleNamespace(
        _record_memory_history=lambda **_: None, _snapshot=lambda: {"device_traces": [events]}
    )
    torch = SimpleNamespace(cuda=SimpleNamespace(memory=memory), __version__="9.9")
    monkeypatch.setitem(sys.modules, "torch", torch)
    path = tmp_path / "out.histories.jsonl.gz"
    recorder = recording(job, path, 2)
    for name in ("a", "a", "b", "c"):
        one = Trial(case(name), FOUND, recorder)
        one.run(["needs", "needs+margin"])
    assert read_ids(path) == ["a", "b"]
    lines = gzip.decompress(path.read_bytes()).splitlines()
    history = json.loads(lines[1])
    assert history["case"]["cap_bytes"] == 10 * GIB
    assert [event[0] for event in history["events"]] == ["alloc", "oom"]
    assert list(history["phases"]) == ["model"]
    assert len(history["marks"]) == 1
