"""The page on performance has what the benchmarks stored."""

from __future__ import annotations

from tests.docs.test_documents import ROOT, script


def test_the_page_on_performance_is_up_to_date() -> None:
    """`python docs/performance.py` would change nothing."""
    assert script("performance")["page"]() == (ROOT / "docs" / "performance.md").read_text("utf-8")


def test_every_question_was_measured() -> None:
    """Each version's column has a figure, or words why there is none, for each question."""
    made = script("performance")
    for name, column in made["json"].loads(made["speed"].HISTORY.read_text("utf-8")).items():
        assert column.keys() == {one.words for one in made["QUESTIONS"]}, name
