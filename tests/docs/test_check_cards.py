"""The page on `check` has the table of where a card is read, as the catalogue has it."""

from __future__ import annotations

from tests.docs.test_documents import ROOT, script


def test_the_page_has_the_table_of_cards() -> None:
    """`python docs/check.py --cards` would change nothing."""
    page = (ROOT / "docs" / "check.md").read_text("utf-8")
    assert f"<!-- cards -->\n{script('check')['cards']()}\n<!-- end -->" in page
