"""The page of formats says what the code does."""

from __future__ import annotations

from tests.docs.test_documents import ROOT, script


def test_the_page_of_formats_is_up_to_date() -> None:
    """`python docs/formats.py` would change nothing."""
    assert script("formats")["page"]() == (ROOT / "docs" / "formats.md").read_text("utf-8")
