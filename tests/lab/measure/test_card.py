"""Is there a card, and what is said when there is none."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from gpu_mem_calculator.lab.measure import card
from gpu_mem_calculator.runfile.text.errors import InputError

from .conftest import TOTAL, FakeCuda


def refusal() -> str:
    """The sentence that refuses."""
    with pytest.raises(InputError) as caught:
        card.find_card()
    (sentence,) = caught.value.problems
    return sentence


def test_the_card_is_looked_at_from_a_child(cuda: FakeCuda) -> None:
    """Its name and memory come back."""
    assert card.find_card() == card.DriverCard(name="Fake GPU", memory_bytes=TOTAL)


def test_without_torch_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """One sentence that says what to install."""
    monkeypatch.setattr(card, "find_spec", lambda name: None)
    assert 'pip install -e ".[measure]" in the clone' in refusal()


def test_a_torch_for_the_cpu_is_named(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """And trace is offered."""
    monkeypatch.setattr(sys.modules["torch"], "version", SimpleNamespace(cuda=None))
    assert refusal() == (
        "measure needs a CUDA GPU, and this torch was built without CUDA; gpu-mem-calc trace runs "
        "the same job without one"
    )


def test_a_machine_without_a_card_is_told_apart_from_a_broken_driver(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None there, or CUDA does not start."""
    monkeypatch.setattr(cuda, "is_available", lambda: False)
    assert "this machine shows none" in refusal()

    def broken() -> bool:
        raise RuntimeError("driver too old")

    monkeypatch.setattr(cuda, "is_available", broken)
    assert "CUDA does not start (RuntimeError: driver too old)" in refusal()


def test_imports_that_are_missing_are_the_jobs_to_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Warming up never fails."""
    asked: list[str] = []

    def missing(name: str) -> None:
        asked.append(name)
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(card, "import_module", missing)
    card.import_once()
    assert asked == list(card.HEAVY)
