"""The page of drawn questions is that of the stored tallies and judgements."""

from __future__ import annotations

from tests.docs.test_documents import ROOT, script


def test_the_page_of_reliability_is_up_to_date() -> None:
    """`python docs/reliability.py` would change nothing."""
    found = script("reliability")
    page = found["page"](found["stored_tallies"]([]))
    assert page == (ROOT / "docs" / "reliability.md").read_text("utf-8")
