"""Remedies in the HTML report."""

from __future__ import annotations

from xml.etree import ElementTree

from gpu_mem_calculator.advice.training.answers import TrainingAnswers, training_answers
from gpu_mem_calculator.estimates.calculator import full_estimate
from gpu_mem_calculator.report.html import remedies_section


def test_each_remedy_has_a_command() -> None:
    """For the run file that the report shows."""
    made = full_estimate({"model": {"name": "llama2-7b"}})
    answers = training_answers(made)
    page = ElementTree.fromstring(remedies_section(made, answers))
    codes = [code.text or "" for code in page.iter("code")]
    assert len(codes) == len(answers.remedies) > 0
    for code, remedy in zip(codes, answers.remedies, strict=True):
        assert code.startswith("gpu-mem-calc calculate --config run.json --set ")
        assert all(f"--set {setting}" in code for setting in remedy.settings)


def test_a_run_that_fits_has_its_longest_sequence() -> None:
    """And no remedies."""
    made = full_estimate({"model": {"name": "gpt2"}})
    section = remedies_section(made, TrainingAnswers(longest_sequence=1024))
    assert "about 1,024 tokens" in section
    assert "<code>" not in section
