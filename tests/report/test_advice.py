"""Which remedies are shown: those that save more than 1 %, three at most."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from gpu_mem_calculator.core import run_changes
from gpu_mem_calculator.core.change_candidates import Candidate
from gpu_mem_calculator.core.run_changes import TrainingChange
from gpu_mem_calculator.report import advice

NEEDS = 10_000
ESTIMATE: Any = SimpleNamespace(replayed=None, result=SimpleNamespace(verdict="no"))


def saves(num_bytes: int, *, fits: bool = False) -> TrainingChange:
    """A change named after what it saves."""
    title, total = str(num_bytes), NEEDS - num_bytes
    return TrainingChange(
        title=title,
        settings=(title,),
        saves_bytes=num_bytes,
        total_bytes=total,
        fits=fits,
        verdict="fits" if fits else "does not fit",
    )


@pytest.fixture
def bytes_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    """A candidate saves as many bytes as its title says; those whose setting ends with ! fit."""

    def attempt(_: object, candidate: Candidate, **__: object) -> TrainingChange | None:
        if candidate.title == "refused":
            return None
        return saves(int(candidate.title), fits=candidate.settings[-1].endswith("!"))

    monkeypatch.setattr(advice, "try_change", attempt)

    def decide(_: object, change: TrainingChange) -> TrainingChange:
        return replace(change, fits=change.settings[-1].endswith("!"))

    monkeypatch.setattr(advice, "replayed_change", decide)
    monkeypatch.setattr(advice, "ledger_bytes", lambda _: NEEDS)


@pytest.mark.usefixtures("bytes_saved")
@pytest.mark.parametrize(
    ("title", "shown"), [("100", False), ("101", True), ("-5", False), ("refused", False)]
)
def test_a_remedy_saves_more_than_1_percent(title: str, shown: bool) -> None:
    """Of 10,000 bytes, 100 are not enough."""
    change = advice._try_worthwhile(ESTIMATE, Candidate(title, ("a=1",)))
    assert (change is not None) is shown


@pytest.mark.usefixtures("bytes_saved")
@pytest.mark.parametrize(
    ("only_fitting", "titles"), [(False, ["500", "50", "300"]), (True, ["50", "300", "150"])]
)
def test_the_first_three_that_survive_a_replay_are_shown(
    only_fitting: bool, titles: list[str]
) -> None:
    """All of them, or those alone that fit."""
    settings = {500: "a", 50: "b!", 300: "c!", 200: "d", 150: "e!"}
    changes = [
        replace(saves(size, fits=True), settings=(setting,)) for size, setting in settings.items()
    ]
    shown = advice._replay_first(ESTIMATE, changes, only_fitting=only_fitting)
    assert [change.title for change in shown] == titles


def test_changes_save_more_than_1_percent_or_take_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twelve that save and two that take; those that fit first, then by bytes."""
    saving = [saves(size) for size in (100, 101, *range(200, 211))] + [saves(150, fits=True)]
    taking = [saves(0), saves(-1), saves(-2, fits=True), saves(-3)]
    tried = iter((saving, taking))
    monkeypatch.setattr(run_changes, "ledger_bytes", lambda _: NEEDS)
    monkeypatch.setattr(run_changes, "_try_all", lambda *_: next(tried))
    for name in ("savings", "further_savings", "uses_of_free_memory"):
        monkeypatch.setattr(run_changes, name, lambda _: ())
    sizes = [change.saves_bytes for change in run_changes.changes(ESTIMATE)]
    assert sizes == [150, -2, *range(210, 199, -1), -1]
